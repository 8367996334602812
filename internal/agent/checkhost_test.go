package agent

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/internal/hostcheck"
)

func TestAHostIsCheckedWithoutAnAgent(t *testing.T) {
	t.Parallel()
	findings, err := Host{}.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, area := range []hostcheck.Area{hostcheck.Container, hostcheck.VM} {
		if !slices.ContainsFunc(findings, func(f hostcheck.Finding) bool { return f.Area == area }) {
			t.Errorf("nothing is said of %q: %+v", area, findings)
		}
	}
}
