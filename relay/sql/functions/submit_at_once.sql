-- One submit in one round trip, as long as nothing about it is special (ADR 0004): claim the
-- key, take a place in line, store the envelope and its event, complete the key's record.
-- services/submit.py is the reference: what it would write, this writes, row for row.
--
-- Locks are taken in the one order (DESIGN rule 4.2): the key's record, then the usage row. Each
-- statement names one shard by equality (4.3), and the clock is read when the row is held (4.4).
--
-- Returns the answer's body. Returns NULL, and leaves nothing behind, when the key was used
-- before, when the queue is unknown or closed, when it looks full, or when the message_id is
-- known: then the reference path judges. It never raises, which would fill the server's log.
CREATE OR REPLACE FUNCTION relay_submit_at_once(
    p_key_shard smallint, p_scope_hash bytea, p_attempt uuid, p_request bytea,
    p_record_lifetime interval,
    p_shard smallint, p_device_id uuid, p_message_id uuid, p_protocol_version smallint,
    p_ciphertext bytea, p_fingerprint bytea,
    p_ttl interval, p_receipt interval, p_receipt_after_expiry interval,
    p_most_count bigint, p_most_bytes bigint,
    p_event_id uuid,
    p_answer text  -- for format(): accepted_at is %1$s, expires_at %2$s
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_size constant integer := octet_length(p_ciphertext);
    v_usage record;
    v_now timestamptz := relay_now();
    v_record_until timestamptz := v_now + p_record_lifetime;
    v_now_us bigint;
    v_accepted_us bigint;
    v_accepted_at timestamptz;
    v_expires_at timestamptz;
    v_receipt_until timestamptz;
    v_form constant text := 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"';
    v_body text;
BEGIN
    INSERT INTO idempotency_record
           (shard, scope_hash, attempt, fingerprint, status, body, expires_at)
    VALUES (p_key_shard, p_scope_hash, p_attempt, p_request, 0, '', v_record_until)
        ON CONFLICT (shard, scope_hash) DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;

    <<plain>>
    BEGIN
        SELECT pending_count, pending_bytes, next_seq, last_accepted_us, closed_at
          INTO v_usage
          FROM quotas_queueusage
         WHERE shard = p_shard AND device_id = p_device_id
           FOR NO KEY UPDATE;
        EXIT plain WHEN NOT FOUND OR v_usage.closed_at IS NOT NULL
             OR v_usage.pending_count + 1 > p_most_count
             OR v_usage.pending_bytes + v_size > p_most_bytes;

        v_now := relay_now();
        v_now_us := extract(epoch FROM v_now) * 1000000;
        v_accepted_us := greatest(v_now_us, v_usage.last_accepted_us + 1);
        v_accepted_at := v_now + (v_accepted_us - v_now_us) * interval '1 microsecond';
        v_expires_at := v_accepted_at + p_ttl;
        v_receipt_until := greatest(v_accepted_at + p_receipt,
                                    v_expires_at + p_receipt_after_expiry);
        v_record_until := v_now + p_record_lifetime;

        INSERT INTO relay_envelope
               (shard, device_id, seq, message_id, size, protocol_version, fingerprint,
                accepted_at, expires_at, outcome, receipt_until)
        VALUES (p_shard, p_device_id, v_usage.next_seq, p_message_id, v_size,
                p_protocol_version, p_fingerprint, v_accepted_at, v_expires_at, 'pending',
                v_receipt_until)
            ON CONFLICT (shard, device_id, message_id) DO NOTHING;
        EXIT plain WHEN NOT FOUND;

        INSERT INTO relay_body (shard, device_id, seq, ciphertext)
        VALUES (p_shard, p_device_id, v_usage.next_seq, p_ciphertext);

        UPDATE quotas_queueusage
           SET pending_count = pending_count + 1,
               pending_bytes = pending_bytes + v_size,
               next_seq = next_seq + 1,
               last_accepted_us = v_accepted_us
         WHERE shard = p_shard AND device_id = p_device_id;

        INSERT INTO outbox_event
               (shard, event_id, schema_version, topic, kind, device_id, state, deliveries,
                failures, starts, next_at, last_error, created_at)
        VALUES (p_shard, p_event_id, 1, 'wake', '', p_device_id, 'pending', 0, 0, 0, v_now, '',
                v_now);

        v_body := format(p_answer, to_char(v_accepted_at AT TIME ZONE 'UTC', v_form),
                         to_char(v_expires_at AT TIME ZONE 'UTC', v_form));
        UPDATE idempotency_record
           SET status = 201, body = v_body, expires_at = v_record_until
         WHERE shard = p_key_shard AND scope_hash = p_scope_hash;
        RETURN v_body;
    END plain;

    DELETE FROM idempotency_record WHERE shard = p_key_shard AND scope_hash = p_scope_hash;
    RETURN NULL;
END;
$$;
