//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var hits atomic.Int64

// Hit kills this process with SIGKILL where the environment says so; see the package. SIGKILL, because a crash runs no
// deferred function.
func Hit(name string) {
	if !named(name) && !armed(name) {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// named tells whether NEARMETAL_FAILPOINT is NAME, or NAME:N at the Nth hit.
func named(name string) bool {
	want, nth, counted := strings.Cut(os.Getenv("NEARMETAL_FAILPOINT"), ":")
	if want != name {
		return false
	}
	n, err := strconv.ParseInt(nth, 10, 64)
	return !counted || err != nil || hits.Add(1) == n
}

// armed tells whether the file that arms this mark was there; renaming it makes this process the only one it kills.
func armed(name string) bool {
	dir := os.Getenv("NEARMETAL_FAILPOINT_DIR")
	if dir == "" {
		return false
	}
	file := filepath.Join(dir, name)
	return os.Rename(file, file+"."+strconv.Itoa(os.Getpid())) == nil
}
