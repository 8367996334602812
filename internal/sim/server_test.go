package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/trust"
)

var (
	secret  = []byte(strings.Repeat("s", 32))
	network = netboot.Network{
		Address:  netip.MustParsePrefix("10.9.0.1/16"),
		Machines: netboot.Range{From: netip.MustParseAddr("10.9.1.1"), To: netip.MustParseAddr("10.9.1.250")},
	}
)

// server is one run of the server, made as internal/server makes it: all it remembers goes with it.
type server struct {
	w         *world
	candidate string
	ctx       context.Context
	end       context.CancelFunc
	parts     sync.WaitGroup
	repo      *state.Repo
	cache     *state.Cache
	heard     *bootapi.Heard
	monitor   *monitor.Monitor
	fabrics   situation.Fabrics
	agents    http.Handler
	boots     http.Handler
	clock     *controller.SiteClock
	wall      func() time.Time
	risen     time.Time
	risenWall time.Time // by its own clock
	// silent: it ended with its machine, and nobody tells the agents.
	silent atomic.Bool

	mu    sync.Mutex
	table *netboot.Table
	// stalled is until when its controller stands still at the beginning of its next pass.
	stalled time.Time
	// decides is its time at the beginning of its last pass: all that the pass decides is of then, whenever it is written.
	decides time.Time
}

// servers are the runs of the server: the present one, and those that were deposed and do not know it yet.
type servers struct {
	mu      sync.Mutex
	present *server // nil while it is down
	unaware []*server
	ended   []*server
	born    int
}

// up is the server, nil while it is down. It may be called from any goroutine.
func (w *world) up() *server {
	w.servers.mu.Lock()
	defer w.servers.mu.Unlock()
	return w.servers.present
}

// start starts a server. Each finds another time on its wall.
func (w *world) start() {
	skew := w.ahead
	if w.cfg.Kinds.Has(ClockJump) && !w.isCalm() {
		skew += w.between(-20*time.Minute, 20*time.Minute)
		w.happened(ClockJump.String())
	}
	w.servers.born++
	s := &server{w: w, candidate: fmt.Sprintf("server-%d", w.servers.born), repo: state.New(w.store), risen: time.Now()}
	s.wall = func() time.Time { return time.Now().Add(skew) }
	s.risenWall = s.wall()
	s.ctx, s.end = context.WithCancel(w.ctx)
	w.must(s.repo.CheckVersion(s.ctx))
	cache, err := s.repo.OpenCache(s.ctx)
	if err != nil {
		w.must(err)
		return
	}
	s.cache = cache
	s.clock = controller.NewSiteClock(s.wall, cache.View().NewestTime())
	s.heard = bootapi.NewHeard(s.now)
	quiet := slog.New(slog.DiscardHandler)
	s.monitor = monitor.New(monitor.Config{
		LogDir: w.t.TempDir(), DeathTimer: lifecycle.DefaultDeathTimer, Now: s.wall, Log: quiet,
		Register: func(ctx context.Context, node api.NodeRecord) error {
			_, err := s.repo.PutNode(ctx, asInspected(s.cache.View(), node))
			return err
		},
		IsMember: func(node string) bool { return memberOf(s.cache.View(), node) },
	})
	s.agents = agentstream.Handler(s.monitor.Serve)
	s.fabrics = w.fabric.keepers(quiet)
	boots, err := bootapi.New(bootapi.Config{
		Reader: s.cache, Writer: s.repo, Images: built{}, Heard: s.heard, Secrets: trust.Secrets{{Key: secret}}, Identify: identify, At: s.at,
		Peers: func(image.Digest) []string { return nil }, AgentServer: "10.9.0.1:7443", SiteTime: s.now, Log: quiet,
		StrangerImage: func() image.Digest { return "" },
	})
	if err != nil {
		w.must(err)
		return
	}
	s.boots = boots.Handler()
	w.servers.mu.Lock()
	w.servers.present = s
	w.servers.mu.Unlock()
	w.trace("%s starts, its wall clock is %s off", s.candidate, skew)
	s.lead(quiet)
	synctest.Wait()
}

// lead lets the server campaign and lead, again and again.
func (s *server) lead(log *slog.Logger) {
	w := s.w
	gate := power.NewGate(power.GateOptions{})
	cfg := controller.Config{
		Candidate: s.candidate, Repo: s.repo, Cache: s.cache, Agents: ears{s.monitor, w, s}, Secrets: trust.Secrets{{Key: secret}}, Pool: placement.DefaultPool,
		Deadlines: w.deadlines(), Images: built{}, Now: s.wall, Clock: s.clock, Log: log,
		VLANs: vlans, PKeys: pkeys, Fabrics: s.fabrics, Offers: w.offers(), FloatingPool: []netip.Prefix{floatingPool},
		Provisioning: &controller.Provisioning{
			New: func() controller.Provisioner {
				return provisioner.New(provisioner.Options{Open: w.bmcs.Open, Gate: gate, Now: s.wall})
			},
			SetTable: s.setTable, Heard: s.heard, Network: network, Deadlines: lifecycle.DefaultMachineDeadlines(),
			Seal: unsealed, Unseal: unsealed, RotatePasswords: true,
		},
	}
	s.parts.Go(func() {
		if err := controller.Run(s.ctx, cfg); err != nil && s.ctx.Err() == nil {
			w.fail("must", "the controller ended: %v", err)
		}
	})
}

// now is the server's time.
func (s *server) now() time.Time { return s.clock.At(s.wall()) }

// alive reports whether the server runs.
func (s *server) alive() bool { return s != nil && s.ctx.Err() == nil }

// stall lets the controller stand still for a while, as on a machine whose disk or memory is busy. All else goes on.
func (s *server) stall(d time.Duration) {
	if s == nil {
		return
	}
	s.w.trace("%s stands still for %s", s.candidate, d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stalled = later(s.stalled, time.Now().Add(d))
}

// stalledUntil is when its controller goes on, or did.
func (s *server) stalledUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stalled
}

// busyUntil is when its controller goes on, or did: it stood still, or its store did.
func (s *server) busyUntil() time.Time {
	s.w.store.mu.Lock()
	silent := s.w.store.silent
	s.w.store.mu.Unlock()
	return later(s.stalledUntil(), silent)
}

// beginPass notes that its controller begins a pass.
func (s *server) beginPass() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.decides = s.now()
}

// decidesAt is the time of what its controller decides in its present pass.
func (s *server) decidesAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.decides
}

// look is what the leader would decide by now.
func (s *server) look() *situation.Site {
	return situation.Observe(s.cache.View(), ears{s.monitor, s.w, s}, s.fabrics, s.now(), s.wall(), s.leadsSince(), lifecycle.DefaultDeadlines())
}

// crash ends a server as kill -9 does. Another starts after a while. It may be called from any goroutine.
func (w *world) crash(s *server, away time.Duration) {
	w.servers.mu.Lock()
	was := w.servers.present == s
	if was {
		w.servers.present = nil
	}
	w.servers.ended = append(w.servers.ended, s)
	w.servers.mu.Unlock()
	w.store.crashed(s.candidate)
	s.end()
	if was {
		w.inbox.post("", func() {
			w.trace("%s has crashed", s.candidate)
			w.checks.disturbed.Add(1)
			w.after(away, w.restart)
		})
	}
}

// restart starts a server if none is there, once the lease of the last is over.
func (w *world) restart() {
	if w.up() == nil {
		w.store.Depose()
		w.start()
	}
}

// usurp starts another server while the old one goes on, believing that it leads: what it still decides must not become true. Some agents
// hold on to it.
func (w *world) usurp() {
	old := w.up()
	if old == nil {
		return
	}
	w.trace("%s is deposed and does not notice", old.candidate)
	w.servers.mu.Lock()
	w.servers.present, w.servers.unaware = nil, append(w.servers.unaware, old)
	w.servers.mu.Unlock()
	w.checks.disturbed.Add(1)
	w.store.deposeSecretly(old.candidate)
	for _, n := range w.nodes {
		if l := n.link; l != nil && l.s == old && w.random.IntN(2) == 0 {
			l.reset()
		}
	}
	w.start()
	w.after(w.between(time.Second, longestUnaware), func() {
		w.servers.mu.Lock()
		for i, s := range w.servers.unaware {
			if s == old {
				w.servers.unaware = append(w.servers.unaware[:i:i], w.servers.unaware[i+1:]...)
				w.servers.ended = append(w.servers.ended, old)
			}
		}
		w.servers.mu.Unlock()
		w.trace("%s ends", old.candidate)
		w.store.aware(old.candidate) // it may have been elected again meanwhile
		old.end()
	})
}

// longestUnaware is how long a deposed leader may go on without noticing: its lease has run out by then.
const longestUnaware = 20 * time.Second

// reach finds a server that takes an agent: the present one, or one that was deposed and does not know it.
func (w *world) reach() *server {
	w.servers.mu.Lock()
	defer w.servers.mu.Unlock()
	s := w.servers.present
	if n := len(w.servers.unaware); n > 0 && (s == nil || w.random.IntN(2) == 0) {
		s = w.servers.unaware[w.random.IntN(n)]
	}
	return s
}

// stop ends all servers, and waits for them.
func (s *servers) stop() {
	s.mu.Lock()
	s.ended = append(s.ended, s.present) // what it is about to commit is still its own
	all := append(slices.Clone(s.ended), s.unaware...)
	s.present = nil
	s.mu.Unlock()
	for _, one := range all {
		if one != nil {
			one.end()
			one.parts.Wait()
		}
	}
}

func (s *server) setTable(t netboot.Table) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil || t.Term > s.table.Term || t.Term == s.table.Term && t.Revision >= s.table.Revision {
		s.table = &t
	}
}

// dhcp is what network boot answers a machine, as far as a leader has said.
func (s *server) dhcp(mac string) (*netboot.Machine, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil || s.ctx.Err() != nil {
		return nil, false
	}
	return s.table.Machines[mac], true
}

// asks is firmware that asks what to boot though nothing is decided.
func (s *server) asks(mac string) {
	if m := s.cache.View().MachineByMAC(mac); m != nil {
		s.heard.Event(m.UID(), netboot.Event{Stage: api.StageFirmware})
	}
}

// port is where all machines are.
const port = "boot0"

// at returns the MAC at an address, and its port.
func (s *server) at(address netip.Addr) (mac, at string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table == nil {
		return "", "", false
	}
	for mac, m := range s.table.Machines {
		if m.Address == address {
			return mac, port, true
		}
	}
	return "", "", false
}

// errAway: there was no answer.
var errAway = errors.New("the server does not answer")

// refused is an answer that says no.
type refused struct{ boot.Problem }

func (r *refused) Error() string { return r.Detail }

// post asks the boot API.
func (s *server) post(path, session string, from netip.Addr, in, out any) error {
	if !s.alive() {
		return errAway
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r := httptest.NewRequestWithContext(s.ctx, http.MethodPost, path, bytes.NewReader(body))
	r.RemoteAddr = netip.AddrPortFrom(from, 40000).String()
	if session != "" {
		r.Header.Set("Authorization", "Bearer "+session)
	}
	answer := httptest.NewRecorder()
	s.boots.ServeHTTP(answer, r)
	switch {
	case s.ctx.Err() != nil:
		return errAway // what it did may be so; the answer is lost
	case answer.Code != http.StatusOK:
		no := &refused{}
		if err := json.NewDecoder(answer.Body).Decode(&no.Problem); err != nil {
			s.w.fail("must", "%s answers %d, %v", path, answer.Code, err)
		}
		return no
	}
	return json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(out)
}

// identify makes the identity of a machine's node agent; its certificate is its ID.
func identify(node, request string) (api.NodeIdentity, api.NodeCertificate, error) {
	return api.NodeIdentity{Node: node, ID: request, Key: request}, api.NodeCertificate{Certificate: request}, nil
}
