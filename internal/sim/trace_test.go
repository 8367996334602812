package sim

import "fmt"

// trace writes a step down. It may be called from any goroutine.
func (w *world) trace(format string, args ...any) {
	if w.cfg.Trace == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.cfg.Trace, "%12s  %s\n", w.since(), fmt.Sprintf(format, args...))
}
