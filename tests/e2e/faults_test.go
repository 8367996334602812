package e2e

import (
	"os"
	"strconv"
	"testing"
)

// faultRounds is how many rounds tests that go by chance make: NEARMETAL_FAULT_ROUNDS, else so many.
func faultRounds(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("NEARMETAL_FAULT_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return usual
}

var _ testing.TB
