"""The small kernel that every app may use: time, transactions, keys, errors, logs."""
