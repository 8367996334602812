//go:build failpoints

package failpoint

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var hits atomic.Int64

// Hit kills this process with SIGKILL when NEARMETAL_FAILPOINT is NAME, or at the Nth hit when it is NAME:N. SIGKILL, because a
// crash runs no deferred function.
func Hit(name string) {
	want, nth, counted := strings.Cut(os.Getenv("NEARMETAL_FAILPOINT"), ":")
	if want != name {
		return
	}
	n, err := strconv.ParseInt(nth, 10, 64)
	if counted && err == nil && hits.Add(1) != n {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
