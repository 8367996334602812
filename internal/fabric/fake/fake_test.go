package fake

import (
	"context"
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
)

func TestConformance(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{
		New:   func(*testing.T, int) fabric.Fabric { return &Fabric{} },
		NetNS: func(*testing.T) string { return "/dev/null" },
		Kinds: fabric.PortKinds(),
	})
}

func TestEveryMethodFailsAsTold(t *testing.T) {
	f := &Fabric{}
	broken := errors.New("broken")
	for _, method := range []string{"Apply", "Audit", "Attach", "Detach"} {
		f.Fail(method, broken)
	}
	n := fabrictest.Network(1, 1)
	_, audit := f.Audit(context.Background())
	for method, err := range map[string]error{
		"Apply": f.Apply(context.Background(), []fabric.Network{n}), "Audit": audit, "Detach": f.Detach(context.Background(), "x"),
	} {
		if !errors.Is(err, broken) {
			t.Errorf("%s: got %v", method, err)
		}
	}
	f.Fail("Apply", nil)
	if err := f.Apply(context.Background(), []fabric.Network{n}); err != nil {
		t.Errorf("Apply, told to work again: %v", err)
	}
}
