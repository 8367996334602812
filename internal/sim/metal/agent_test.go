package metal

import (
	"context"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/boot"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// agent is the node agent of a boot: connected whenever it can be, until it is told to power its machine off. One whose machine ends
// suddenly tells nobody.
func (t *talker) agent(ctx context.Context, generation int64, welcome boot.Welcome, finish func(after)) {
	token, err := trust.ParseToken(welcome.Agent.Token)
	if err != nil {
		t.w.t.Errorf("%s: the token of its agent: %v", t.name, err)
		return
	}
	var joined *site
	for pause(ctx, time.Second) {
		s := t.server()
		if s == nil || s.ctx.Err() != nil {
			joined = nil
			continue
		}
		if joined != s {
			if s.cache.View().Token(token.ID()) == nil {
				pause(ctx, 4*time.Second) // turned away
				continue
			}
			if _, err := s.repo.PutNode(s.ctx, api.NodeRecord{Name: t.name, AgentID: welcome.Agent.AgentID, BootGeneration: generation}); err != nil {
				continue
			}
			t.mu.Lock()
			t.runs.agent = ctx.Err() == nil
			t.mu.Unlock()
			joined = s
		}
		desired := s.agents.hear(t.name)
		if off := desired.PowerOff; off != nil && off.BootGeneration == generation {
			if t.chance(6) {
				t.w.seen.add("does not go off by itself")
				t.stand(ctx, "it hangs on its way off")
				return
			}
			for range t.between(1, 15) { // it ends what runs, and is heard meanwhile
				s.agents.hear(t.name)
				pause(ctx, time.Second)
			}
			s.agents.lose(t.name)
			t.mu.Lock()
			t.runs.agent = false
			t.mu.Unlock()
			pause(ctx, t.between(time.Second, 8*time.Second))
			finish(powerOff)
			return
		}
	}
}
