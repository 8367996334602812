package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
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

func TestAnAgentChecksItsHostOnceAtATime(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	a := &Agent{cfg: Config{CheckHost: func(context.Context) ([]api.HostFinding, error) {
		begun <- struct{}{}
		<-end
		return []api.HostFinding{{Name: "KVM"}}, nil
	}}}
	ended := make(chan error, 1)
	go func() {
		found, err := a.checkOnce(t.Context())
		if err == nil && len(found) != 1 {
			err = errors.New("nothing was found")
		}
		ended <- err
	}()
	<-begun
	if _, err := a.checkOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "already checking") {
		t.Errorf("a second check at once: %v", err)
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := (&Agent{}).checkOnce(t.Context()); err == nil || !strings.Contains(err.Error(), "can't check its host") {
		t.Errorf("an agent without a check: %v", err)
	}
}
