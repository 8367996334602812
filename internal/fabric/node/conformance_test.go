package node

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
)

func TestConformance(t *testing.T) {
	needRoot(t)
	spaces := map[int]namespace{}
	fabrictest.Run(t, fabrictest.Harness{
		Kinds: []api.PortKind{api.PortTAP},
		New: func(t *testing.T, node int) fabric.Fabric {
			t.Helper()
			space, made := spaces[node/100] // the suite's nodes of one test are processes on one machine
			if !made {
				space = newSpace(t)
				spaces[node/100] = space
			}
			return newFabric(t, space, Config{})
		},
		NetNS: func(t *testing.T) string {
			t.Helper()
			return newSpace(t).Path()
		},
	})
}
