// A client of the relay, in plain Node (18 or newer), written from docs/api.md alone.
//
//     RELAY_URL=… RELAY_DEMO_PROVISIONER_TOKEN=… node client.mjs FILE
//
// Makes two devices, carries FILE from one to the other, encrypted end to end in parts, loses the
// answer to one submit on purpose, and exits 0 only if the very same bytes came out. 1: it did not
// work; 2: the command line or the environment is wrong.

import { createCipheriv, createDecipheriv, createHash, diffieHellman } from 'node:crypto'
import { generateKeyPairSync, hkdfSync, randomBytes, randomUUID } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { performance } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'

const ATTEMPT_MS = 15_000
const PATIENCE_MS = 180_000
const TTL_SECONDS = 3_600
const PART_BYTES = 48 * 1024

// --- The relay: one call, repeated while that can help ---------------------------------------

/** A call that did not succeed. `code` is the catalogue's, or ours when the relay did not speak. */
class Refused extends Error {
  constructor(code, detail, { retryable, retryAfter = 0 }) {
    super(`${code}: ${detail}`)
    Object.assign(this, { code, retryable, retryAfter })
  }
}

/** One caller's side of the protocol. `onAnswer` may lose an answer, as networks do. */
class Relay {
  constructor(url, token, { onAnswer = () => {}, patience = PATIENCE_MS } = {}) {
    Object.assign(this, { url, token, onAnswer, patience })
  }

  /**
   * `isOurs` looks at a success: a login page of some network is one too. What it does not know
   * counts as no answer. Every attempt sends the same bytes and the same key.
   */
  async call(method, path, { body, key, isOurs }) {
    const headers = {}
    if (this.token) headers.Authorization = `Bearer ${this.token}`
    if (key) headers['Idempotency-Key'] = key
    if (body) headers['Content-Type'] = 'application/json'
    const request = { method, headers, body: body && JSON.stringify(body), redirect: 'manual' }
    const giveUpAt = performance.now() + this.patience
    for (let attempt = 0; ; attempt++) {
      try {
        return await this.#attempt(path, request, isOurs)
      } catch (error) {
        if (!(error instanceof Refused) || !error.retryable) throw error
        const own = Math.min(20_000, 500 * 2 ** Math.min(attempt, 6)) * (0.5 + Math.random() / 2)
        const wait = Math.max(own, error.retryAfter * 1000)
        if (performance.now() + wait >= giveUpAt) throw error
        await sleep(wait)
      }
    }
  }

  async #attempt(path, request, isOurs) {
    let response, text
    try {
      const signal = AbortSignal.timeout(ATTEMPT_MS)
      response = await fetch(this.url + path, { ...request, signal })
      text = await response.text()
      this.onAnswer(request, response, text)
    } catch (error) {
      throw new Refused('NO_ANSWER', error.cause?.code ?? error.message, { retryable: true })
    }
    const found = parsed(text)
    const replayed = response.headers.get('Idempotency-Replayed') === 'true'
    if (response.ok && shaped(isOurs, found)) {
      return { status: response.status, found, text, replayed }
    }
    throw failure(response, found)
  }

  instance() {
    const isOurs = (found) => found.limits.envelope_bytes > 0 && found.ttl.minimum > 0
    return this.call('GET', '/v1/instance', { isOurs }).then(({ found }) => found)
  }

  /** As a provisioner. The relay gets SHA-256 of the secret's bytes, and never the secret. */
  putDevice({ id, secret }) {
    const body = { token_sha256: createHash('sha256').update(secret).digest('hex') }
    const isOurs = (found) => found.device_id === id && found.state === 'active'
    return this.call('PUT', `/v1/devices/${id}`, { body, key: randomUUID(), isOurs })
  }

  disableDevice(id) {
    const isOurs = (found) => found.state === 'disabled'
    return this.call('DELETE', `/v1/devices/${id}`, { isOurs })
  }

  /** A draft has its key beside its body, since before its first attempt. */
  submit({ key, body }) {
    const isOurs = (found) => found.message_id === body.message_id
    return this.call('POST', '/v1/envelopes', { key, body, isOurs })
  }

  async pull(cursor, limit) {
    const query = new URLSearchParams({ limit, ...(cursor && { cursor }) })
    const isOurs = (page) => Array.isArray(page.envelopes) && page.next_cursor !== ''
    const { found } = await this.call('GET', `/v1/envelopes?${query}`, { isOurs })
    return found
  }

  async acknowledge(ids) {
    const isOurs = (found) => found.results.length === ids.length
    const body = { message_ids: ids }
    const { found } = await this.call('POST', '/v1/acks', { body, isOurs })
    return found.results
  }

  async pending() {
    const isOurs = (found) => found.pending.count >= 0
    return (await this.call('GET', '/v1/device', { isOurs })).found.pending
  }
}

function failure(response, found) {
  const { status } = response
  const header = Number(response.headers.get('Retry-After')) || 0
  const type = response.headers.get('Content-Type')
  if (type === 'application/problem+json' && typeof found?.code === 'string') {
    const { code, detail, retryable, retry_after: after = 0 } = found
    return new Refused(code, detail, { retryable, retryAfter: Math.max(header, after) })
  }
  const retryable = response.ok || [429, 502, 503, 504].includes(status)
  const detail = 'the answer is not a relay’s'
  return new Refused(`HTTP_${status}`, detail, { retryable, retryAfter: header })
}

function parsed(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

function shaped(isOurs, found) {
  try {
    return isOurs(found)
  } catch {
    return false
  }
}

// --- End-to-end encryption -------------------------------------------------------------------
//
// X25519 between the two devices' keys, HKDF-SHA256 with a fresh salt for each envelope, and
// AES-256-GCM. So no key encrypts twice, and its nonce comes out of the same HKDF. Both public
// keys and the recipient's id go into the derivation: an envelope opens in one direction and for
// one device. Stands in for a messenger's own protocol, which would have forward secrecy.
//
//     salt (32) · encrypted: transfer (16) · index (4) · count (4) · length (4) · content, padding · tag (16)
//
// Transfer, index and count are inside the encryption: the relay can neither see them nor drop,
// repeat, swap or mix parts without being found out. All envelopes of a transfer have one size.

const SALT_BYTES = 32
const TAG_BYTES = 16
const HEAD_BYTES = 28
const OVERHEAD = SALT_BYTES + HEAD_BYTES + TAG_BYTES
const CONTEXT = 'relay example, one part, format 1'

function keyAndNonce(salt, mine, theirs, { from, to, device }) {
  const secret = diffieHellman({ privateKey: mine, publicKey: theirs })
  const raw = (key) => Buffer.from(key.export({ format: 'jwk' }).x, 'base64url')
  const info = Buffer.concat([Buffer.from(CONTEXT), raw(from), raw(to), Buffer.from(device)])
  const bytes = Buffer.from(hkdfSync('sha256', secret, salt, info, 32 + 12))
  return [bytes.subarray(0, 32), bytes.subarray(32)]
}

function seal({ transfer, index, count, content }, size, sender, recipient) {
  const plain = Buffer.alloc(HEAD_BYTES + size)
  transfer.copy(plain, 0)
  plain.writeUInt32BE(index, 16)
  plain.writeUInt32BE(count, 20)
  plain.writeUInt32BE(content.length, 24)
  content.copy(plain, HEAD_BYTES)
  const salt = randomBytes(SALT_BYTES)
  const way = { from: sender.publicKey, to: recipient.publicKey, device: recipient.id }
  const [key, nonce] = keyAndNonce(salt, sender.privateKey, recipient.publicKey, way)
  const cipher = createCipheriv('aes-256-gcm', key, nonce)
  return Buffer.concat([salt, cipher.update(plain), cipher.final(), cipher.getAuthTag()])
}

/** Throws when the sender did not make this for this device, or somebody changed it. */
function unseal(ciphertext, recipient, sender) {
  if (ciphertext.length < OVERHEAD) throw new Error('too short')
  const salt = ciphertext.subarray(0, SALT_BYTES)
  const way = { from: sender.publicKey, to: recipient.publicKey, device: recipient.id }
  const [key, nonce] = keyAndNonce(salt, recipient.privateKey, sender.publicKey, way)
  const decipher = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: TAG_BYTES })
  decipher.setAuthTag(ciphertext.subarray(-TAG_BYTES))
  const sealed = ciphertext.subarray(SALT_BYTES, -TAG_BYTES)
  const plain = Buffer.concat([decipher.update(sealed), decipher.final()])
  const length = plain.readUInt32BE(24)
  return {
    transfer: plain.toString('hex', 0, 16),
    index: plain.readUInt32BE(16),
    count: plain.readUInt32BE(20),
    content: plain.subarray(HEAD_BYTES, HEAD_BYTES + length),
  }
}

/** The parts of one transfer as they come, in any order. */
class Assembly {
  #parts = new Map()
  #transfer
  #count

  add({ transfer, index, count, content }) {
    this.#transfer ??= transfer
    this.#count ??= count
    if (transfer !== this.#transfer || count !== this.#count) throw new Error('another transfer')
    if (index >= count || this.#parts.has(index)) throw new Error(`part ${index} once too often`)
    this.#parts.set(index, content)
  }

  get size() {
    return this.#parts.size
  }

  content() {
    const missing = (this.#count ?? 1) - this.size
    if (missing) throw new Error(`${missing} parts did not arrive`)
    return Buffer.concat([...this.#parts].sort(([a], [b]) => a - b).map(([, content]) => content))
  }
}

// --- The devices -----------------------------------------------------------------------------

/** A device: a credential for the relay, and a key pair that the relay knows nothing of. */
function makeDevice() {
  const [id, secret] = [randomUUID(), randomBytes(32)]
  const token = `rld1.${id}.${secret.toString('base64url')}`
  return { id, secret, token, ...generateKeyPairSync('x25519') }
}

/** Drafts with everything that a retry needs. A real client has them on disk from here on. */
function* drafts(content, size, ttl, sender, recipient) {
  const transfer = randomBytes(16)
  const count = Math.max(1, Math.ceil(content.length / size))
  for (let index = 0; index < count; index++) {
    const part = content.subarray(index * size, (index + 1) * size)
    const sealed = seal({ transfer, index, count, content: part }, size, sender, recipient)
    const body = {
      recipient_device_id: recipient.id,
      message_id: randomUUID(),
      protocol_version: 1,
      ciphertext: sealed.toString('base64'),
      ttl_seconds: ttl,
    }
    yield { key: randomUUID(), body }
  }
}

/** What a device remembers of its queue. A real client has it beside its messages, on disk. */
class Inbox {
  #relay
  #cursor
  #seen = new Set()
  #owed = new Set()

  constructor(relay) {
    this.#relay = relay
  }

  /** Pages from where the cursor stands; the cursor moves on when a page was taken care of. */
  async *pages(limit) {
    let page
    do {
      page = await this.#page(limit)
      yield page.envelopes
      this.#cursor = page.next_cursor
    } while (page.has_more)
  }

  async #page(limit) {
    try {
      return await this.#relay.pull(this.#cursor, limit)
    } catch (error) {
      if (!this.#cursor || !['CURSOR_STALE', 'CURSOR_INVALID'].includes(error.code)) throw error
      return this.#relay.pull(undefined, limit)
    }
  }

  /** `take` each envelope that is new. One that it throws at stays unacknowledged. */
  receive(envelopes, take, leave) {
    for (const envelope of envelopes) {
      const id = envelope.message_id
      try {
        if (!this.#seen.has(id)) take(Buffer.from(envelope.ciphertext, 'base64'))
      } catch (error) {
        leave(id, error)
        continue
      }
      this.#seen.add(id)
      this.#owed.add(id)
    }
  }

  /** Acknowledge what is owed; returns each id's status. Whatever it says is final. */
  async acknowledge() {
    const statuses = await acknowledgeAll(this.#relay, [...this.#owed])
    for (const id of statuses.keys()) this.#owed.delete(id)
    return statuses
  }
}

async function acknowledgeAll(relay, ids) {
  const statuses = new Map()
  for (let start = 0; start < ids.length; start += 100) {
    const results = await relay.acknowledge(ids.slice(start, start + 100))
    for (const { message_id: id, status } of results) statuses.set(id, status)
  }
  return statuses
}

// --- The story -------------------------------------------------------------------------------

const started = performance.now()

function tell(who, what) {
  const seconds = ((performance.now() - started) / 1000).toFixed(2)
  console.log(`${seconds.padStart(7)} s  ${who.padEnd(11)}  ${what}`)
}

const counted = (number, noun) => `${number} ${noun}${number === 1 ? '' : 's'}`

/** Loses the answer to one submit, after it has come: the relay has committed, nobody knows. */
class LosesOneAnswer {
  armed = false
  lost = ''

  look = (request, response, text) => {
    if (!this.armed || request.method !== 'POST' || response.status !== 201) return
    this.armed = false
    this.lost = text
    tell('network', 'loses the answer, on purpose')
    throw new Error('lost')
  }
}

async function send(relay, network, outbox, { from, upTo, count }) {
  const middle = Math.floor((count - 1) / 2)
  for (let index = from; index < upTo; index++) {
    network.armed = index === middle
    const answer = await relay.submit(outbox[index])
    if (index === middle) {
      if (!answer.replayed || answer.text !== network.lost) {
        throw new Error('a repeated submit did not get the first answer')
      }
      tell('sender', `sent part ${index + 1} again: 201 replayed, byte for byte`)
    }
    // Answered: a real client drops the draft from its disk here.
  }
  tell('sender', `sent parts ${from + 1} to ${upTo} of ${count}`)
}

async function receive(inbox, assembly, limit, open) {
  for await (const envelopes of inbox.pages(limit)) {
    const had = assembly.size
    inbox.receive(envelopes, (ciphertext) => assembly.add(open(ciphertext)), (id, error) => {
      tell('recipient', `leaves ${id} alone: ${error.message}`)
    })
    tell('recipient', `pulled a page, decrypted ${counted(assembly.size - had, 'part')}`)
  }
}

async function makeDevices(provisioner, devices, made) {
  for (const device of devices) {
    made.push(device) // before we know: the answer can be what gets lost
    await provisioner.putDevice(device)
  }
  tell('provisioner', 'made two devices, by SHA-256 of secrets that they keep')
}

async function carry(content, url, provisioner, made) {
  const [sender, recipient] = [makeDevice(), makeDevice()]
  const network = new LosesOneAnswer()
  const asSender = new Relay(url, sender.token, { onAnswer: network.look })
  const asRecipient = new Relay(url, recipient.token)
  const { limits, ttl } = await new Relay(url, undefined, { patience: 3_000 }).instance()
  await makeDevices(provisioner, [sender, recipient], made)

  const size = Math.min(PART_BYTES, limits.envelope_bytes - OVERHEAD)
  const seconds = Math.max(TTL_SECONDS, ttl.minimum)
  const outbox = [...drafts(content, size, seconds, sender, recipient)]
  const count = outbox.length
  tell('sender', `encrypted ${counted(content.length, 'byte')} in ${counted(count, 'part')}`)

  // A queue takes so many and no more; only acknowledging makes room.
  const fits = Math.min(limits.pending_count, Math.floor(limits.pending_bytes / (size + OVERHEAD)))
  const pageLimit = Math.min(100, Math.max(1, Math.ceil(Math.min(count, fits) / 3)))
  const [inbox, assembly, statuses] = [new Inbox(asRecipient), new Assembly(), new Map()]
  const open = (ciphertext) => unseal(ciphertext, recipient, sender)
  for (let from = 0; from < count; from += fits) {
    await send(asSender, network, outbox, { from, upTo: Math.min(count, from + fits), count })
    await receive(inbox, assembly, pageLimit, open)
    if (from + fits < count) for (const [id, s] of await inbox.acknowledge()) statuses.set(id, s)
  }

  if (!assembly.content().equals(content)) throw new Error('what came out is not what went in')
  tell('recipient', 'has the very same bytes')
  for (const [id, status] of await inbox.acknowledge()) statuses.set(id, status)
  tell('recipient', `acknowledged ${counted(statuses.size, 'envelope')}`)
  await acknowledgeAgain(asRecipient, statuses)
}

async function acknowledgeAgain(relay, statuses) {
  const again = await acknowledgeAll(relay, [...statuses.keys()])
  for (const [id, status] of again) {
    if (status !== 'acknowledged' || statuses.get(id) !== status) {
      throw new Error(`an acknowledgement of ${id} says ${status}`)
    }
  }
  const { count } = await relay.pending()
  tell('recipient', `acknowledged again: the same ${counted(again.size, 'answer')}, ${count} pending`)
}

/** The demo leaves nothing pending. Returns how many devices it could disable. */
async function cleanUp(provisioner, made) {
  let done = 0
  for (const { id } of made) {
    try {
      await provisioner.disableDevice(id)
      done++
    } catch (error) {
      if (['NOT_FOUND', 'UNAUTHENTICATED', 'FORBIDDEN'].includes(error.code)) continue // none made
      console.error(`Could not disable ${id}: ${error.message}`)
    }
  }
  return done
}

async function main([file, ...more], { RELAY_URL: url, RELAY_DEMO_PROVISIONER_TOKEN: token }) {
  if (!file || more.length || !url || !token) {
    console.error('usage: RELAY_URL=… RELAY_DEMO_PROVISIONER_TOKEN=… node client.mjs FILE' +
      ' (beside a trial: . .relay/env; export RELAY_URL RELAY_DEMO_PROVISIONER_TOKEN)')
    return 2
  }
  let content
  try {
    content = await readFile(file)
  } catch (error) {
    console.error(`${file} cannot be read: ${error.code}`)
    return 2
  }
  const base = url.replace(/\/+$/, '')
  const made = []
  try {
    await carry(content, base, new Relay(base, token), made)
    console.log(`Equal: ${counted(content.length, 'byte')}.`)
    return 0
  } catch (error) {
    console.error(`Failed: ${error.message}`)
    return 1
  } finally {
    const done = await cleanUp(new Relay(base, token, { patience: 3_000 }), made)
    if (done) tell('provisioner', `disabled ${counted(done, 'device')}`)
  }
}

process.exitCode = await main(process.argv.slice(2), process.env)
