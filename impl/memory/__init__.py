"""Memory: pages, rows, records, the prefix tree and sessions. `KvCache` is the door; everything else is behind it."""
