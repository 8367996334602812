//go:build !failpoints

package failpoint

// Hit does nothing in an ordinary build and is inlined away.
func Hit(string) {}
