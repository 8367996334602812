package node

import (
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/fabrictest"
)

func TestConformance(t *testing.T) {
	needRoot(t)
	spaces := map[int]namespace{}
	for i := range 10 {
		spaces[i] = newSpace(t)
	}
	fabrictest.Run(t, fabrictest.Harness{
		New: func(t *testing.T, node int) fabric.Fabric {
			t.Helper()
			return newFabric(t, spaces[node/100], Config{})
		},
		NetNS: func(t *testing.T) string {
			t.Helper()
			return newSpace(t).Path()
		},
	})
}
