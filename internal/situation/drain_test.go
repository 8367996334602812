package situation

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestADrainByPolicyKeepsMembersWhereTheyAre(t *testing.T) {
	since := time.Unix(100, 0)
	byOperator := standingOf(&state.Node{Name: "n1", Control: &api.NodeControl{Drained: true, Since: since}})
	if !byOperator.drained || !byOperator.drainedAt.Equal(since) {
		t.Errorf("a drain by an operator: %+v; want members to move since then", byOperator)
	}
	byPolicy := standingOf(&state.Node{Name: "n1", Control: &api.NodeControl{Drained: true, Stay: true, Since: since}})
	if !byPolicy.drained || !byPolicy.drainedAt.IsZero() {
		t.Errorf("a drain by policy: %+v; want it drained, and nobody to move", byPolicy)
	}
}
