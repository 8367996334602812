package lifecycle

import "time"

// DefaultDeathTimer is how long a node may be silent before it is down.
const DefaultDeathTimer = 5 * time.Second
