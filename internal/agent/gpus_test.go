package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// greeted is an agent whose greetings are received, and that has no environments.
func greeted(t *testing.T) (*Agent, chan api.NodeRecord) {
	t.Helper()
	a := newTestAgent(t)
	greetings := make(chan api.NodeRecord, 3)
	server := mute(t, func(c *agentstream.ServerConn) {
		up, err := c.Receive()
		if err != nil || up.Hello == nil {
			t.Errorf("got %+v, %v; want a greeting", up, err)
			return
		}
		greetings <- up.Hello.Node
	})
	a.cfg.Server, a.cfg.Client = server.URL, server.Client()
	a.cfg.Inspect = func(context.Context) []api.EnvironmentOnNode { return nil }
	a.opening.underlayEvery = time.Millisecond
	return a, greetings
}

func TestAChangeOfANodesGPUsIsReported(t *testing.T) {
	a, greetings := greeted(t)
	var now atomic.Pointer[gpu.Found]
	one := gpu.Found{GPUs: []api.NodeGPU{{ID: "GPU-a"}}}
	now.Store(&one)
	looks := make(chan struct{}, 100)
	a.cfg.GPUs = func(context.Context) gpu.Found {
		select {
		case looks <- struct{}{}:
		default:
		}
		return *now.Load()
	}
	ended := make(chan error, 1)
	session := func() { _, err := a.session(bounded(t)); ended <- err }
	go session()
	if got := <-greetings; len(got.GPUs) != 1 || len(got.Capacity.Devices) != 1 || got.Capacity.Devices[0].ID != "GPU-a" {
		t.Errorf("greeted with %+v and %+v", got.GPUs, got.Capacity.Devices)
	}
	for range 5 { // that it is the same is no news
		<-looks
	}
	select {
	case err := <-ended:
		t.Fatalf("the stream ended without a change: %v", err)
	default:
	}
	now.Store(&gpu.Found{GPUs: []api.NodeGPU{{ID: "GPU-a", Problems: []string{"it has fallen off its bus"}}}, Problems: []string{"the driver complains"}})
	if err := <-ended; !errors.Is(err, errGPUsChanged) {
		t.Fatalf("the stream ended by %v, want the change", err)
	}
	go session()
	if got := <-greetings; len(got.GPUs) != 1 || len(got.Capacity.Devices) != 0 || len(got.GPUProblems) != 1 {
		t.Errorf("greeted with %+v, %+v and %q", got.GPUs, got.Capacity.Devices, got.GPUProblems)
	}
	now.Store(&one)
	<-ended
}

func TestANodeWhoseGPUsCanNotBeReadIsReportedWithoutThem(t *testing.T) {
	a, greetings := greeted(t)
	a.opening.inspectPatience, a.opening.patience = 10*time.Millisecond, 5*time.Second
	hang := make(chan struct{})
	a.cfg.GPUs = func(context.Context) gpu.Found {
		<-hang
		return gpu.Found{GPUs: []api.NodeGPU{{ID: "GPU-a"}}}
	}
	ended := make(chan error, 1)
	session := func() { _, err := a.session(bounded(t)); ended <- err }
	go session()
	select {
	case got := <-greetings:
		if len(got.GPUs) != 0 {
			t.Errorf("greeted with %+v", got.GPUs)
		}
	case err := <-ended:
		t.Fatalf("the stream ended before the greeting: %v", err)
	}
	close(hang)
	if err := <-ended; !errors.Is(err, errGPUsChanged) {
		t.Fatalf("the stream ended by %v, want that the GPUs are known", err)
	}
	a.opening.inspectPatience = 10 * time.Second
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { _, err := a.session(ctx); ended <- err }()
	if got := <-greetings; len(got.GPUs) != 1 {
		t.Errorf("greeted with %+v", got.GPUs)
	}
	cancel()
	<-ended
}

func TestNodesThatShareAMachineGiveNoGPUsToMachines(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for want, opts := range map[string]config.Agent{
		"--passthrough-gpus conflicts with --gpus 1/2":               {GPUs: inventory.Part{N: 1, Of: 2}, PassthroughGPUs: []string{"all"}},
		`--passthrough-clearing "twice" is neither proven nor reset`: {PassthroughClearing: "twice"},
	} {
		if _, err := openGPUs(t.Context(), &Config{}, opts, t.TempDir(), log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if gpus, err := openGPUs(t.Context(), &Config{}, config.Agent{GPUs: inventory.Part{Of: 1}}, t.TempDir(), log); gpus != nil || err != nil {
		t.Errorf("a node that keeps its GPUs has %v, %v", gpus, err)
	}
}
