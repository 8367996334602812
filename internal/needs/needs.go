// Package needs states what a test needs of its machine. In CI a test whose need is missing fails, because set-up should have met it; elsewhere
// it skips and prints what to install. Only hardware that cannot be emulated skips everywhere. Start with Program.
//
// No test calls testing's own Skip: internal/archtest reports it.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program that the test runs. setup/packages.txt names the package that has it.
func Program(t testing.TB, name string) string {
	t.Helper()
	file, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "the program %s is not installed (make setup installs it)", name)
	}
	return file
}

// Root requires the test to run as root; why completes "it ...", such as "makes network namespaces".
func Root(t testing.TB, why string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "the test is not run by root: it %s (make unit runs tests as root)", why)
	}
}

// Missing reports a need that set-up should have met: the test fails in CI, and skips elsewhere.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("missing in CI: "+format, args...)
		return
	}
	t.Skipf("missing: "+format, args...)
}

// Hardware skips a test that needs a device, or a kernel with an ability, that no set-up can bring about on this machine.
func Hardware(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Skipf("not on this machine: "+format, args...)
}

// Request skips a test that runs on request only, by an environment variable; how names the make target that sets it.
func Request(t testing.TB, variable, how string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skipf("runs on request: %s, or set %s", how, variable)
	}
}

// Child skips a test that another test runs as a process of its own, which sets the environment variable.
func Child(t testing.TB, variable string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skip("is run by another test, in a process of its own")
	}
}

// Ability skips a row of a conformance suite for an implementation that, by its own declaration, lacks the optional ability.
func Ability(t testing.TB, has bool, what string) {
	t.Helper()
	if !has {
		t.Skip("not an ability of this implementation: " + what)
	}
}
