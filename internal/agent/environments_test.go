package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// leader is a server that wants of an agent what a test says, and keeps what the agent tells, its output and its blobs.
type leader struct {
	t    *testing.T
	http *httptest.Server

	serving  sync.Mutex // held by a stream: what an ended one left unread must not count as newer than what the next one says
	mu       sync.Mutex
	desired  agentstream.Desired
	observed agentstream.Observed
	node     api.NodeRecord
	logs     map[string][]byte
	blobs    map[string][]byte
	puts     int
	changed  chan struct{} // closed and made anew at every change
	wants    chan struct{}
}

func newLeader(t *testing.T) *leader {
	t.Helper()
	l := &leader{
		t: t, desired: agentstream.Desired{Term: 1, Revision: 1}, logs: map[string][]byte{}, blobs: map[string][]byte{},
		changed: make(chan struct{}), wants: make(chan struct{}, 1),
	}
	mux := http.NewServeMux()
	mux.Handle(agentstream.Path, agentstream.Handler(l.serve))
	mux.HandleFunc("/agent/v1/images/{hex}", l.image)
	l.http = httptest.NewUnstartedServer(mux)
	l.http.EnableHTTP2 = true
	l.http.StartTLS()
	t.Cleanup(func() {
		l.http.CloseClientConnections()
		l.http.Close()
	})
	return l
}

func (l *leader) change(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *leader) serve(ctx context.Context, c *agentstream.ServerConn) {
	l.serving.Lock()
	defer l.serving.Unlock()
	acks := make(chan *agentstream.LogAck, 100)
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	defer func() {
		cancel()
		c.Abort()
		sending.Wait()
	}()
	sending.Go(func() {
		pings, tick := int64(0), time.NewTicker(100*time.Millisecond)
		defer tick.Stop()
		said := map[string]bool{}
		for fresh := true; ; {
			l.mu.Lock()
			desired := l.desired
			var first []*agentstream.LogAck
			for _, b := range desired.Builds {
				if run := b.RunID(); !said[run] {
					said[run] = true
					first = append(first, &agentstream.LogAck{JobID: run, Offset: int64(len(l.logs[run]))})
				}
			}
			l.mu.Unlock()
			if fresh {
				if c.Send(agentstream.Down{Desired: &desired}) != nil {
					return
				}
			}
			for _, ack := range first {
				if c.Send(agentstream.Down{LogAck: ack}) != nil {
					return
				}
			}
			fresh = false
			select {
			case <-ctx.Done():
				return
			case <-l.wants:
				fresh = true
			case ack := <-acks:
				_ = c.Send(agentstream.Down{LogAck: ack})
			case <-tick.C:
				pings++
				_ = c.Send(agentstream.Down{Ping: &agentstream.Ping{Seq: pings}})
			}
		}
	})
	for {
		up, err := c.Receive()
		if err != nil {
			return
		}
		l.change(func() {
			switch {
			case up.Hello != nil:
				l.node = up.Hello.Node
			case up.Observed != nil:
				l.observed = *up.Observed
			case up.Log != nil:
				if int64(len(l.logs[up.Log.JobID])) == up.Log.Offset {
					l.logs[up.Log.JobID] = append(l.logs[up.Log.JobID], up.Log.Data...)
				}
				acks <- &agentstream.LogAck{JobID: up.Log.JobID, Offset: int64(len(l.logs[up.Log.JobID]))}
			}
		})
	}
}

// image is the server's end of serverBlobs.
func (l *leader) image(w http.ResponseWriter, r *http.Request) {
	hexDigits := r.PathValue("hex")
	if r.Method == http.MethodPut {
		data, err := io.ReadAll(r.Body)
		if err != nil || image.DigestOf(data).Hex() != hexDigits {
			http.Error(w, "digest mismatch", http.StatusUnprocessableEntity)
			return
		}
		l.change(func() { l.blobs[hexDigits], l.puts = data, l.puts+1 })
		w.WriteHeader(http.StatusCreated)
		return
	}
	l.mu.Lock()
	data, ok := l.blobs[hexDigits]
	l.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// want tells the agent what is wanted now.
func (l *leader) want(change func(d *agentstream.Desired)) {
	l.change(func() {
		l.desired.Revision++
		change(&l.desired)
	})
	select {
	case l.wants <- struct{}{}:
	default:
	}
}

// until waits until what the agent said passes a test.
func (l *leader) until(what string, test func(agentstream.Observed) bool) agentstream.Observed {
	l.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		observed, changed := l.observed, l.changed
		ok := test(observed)
		l.mu.Unlock()
		if ok {
			return observed
		}
		select {
		case <-changed:
		case <-deadline:
			l.t.Fatalf("never: %s; last %+v", what, observed)
		}
	}
}

// run runs an agent until the returned function is called.
func (l *leader) run(dir string, adjust func(*agent.Config)) (stop func()) {
	cfg := agent.Config{
		Node: api.NodeRecord{Name: "n1"}, StateDir: dir, HomeDir: filepath.Join(dir, "home"), Server: l.http.URL, Client: l.http.Client(),
		Fabric: &fabricfake.Fabric{}, Inspect: func(context.Context) []api.EnvironmentOnNode { return nil },
		Log: slog.New(slog.NewTextHandler(testWriter{l.t}, nil)), Silence: 10 * time.Second,
	}
	cfg.Blobs = agent.NewServerBlobs(l.http.URL, l.http.Client())
	adjust(&cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx, cfg) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			l.t.Errorf("the agent ended with %v", err)
		}
	})
	l.t.Cleanup(stop)
	return stop
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nm") // t.TempDir is too long for the path of a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// builder pretends to build: it prints, and makes blobs, or waits until it is told to end.
type builder struct {
	blobs [][]byte
	begun chan build.Job
	wait  bool
	ended chan error
}

func (b *builder) Check(context.Context) api.BuilderCheck { return api.BuilderCheck{OK: true} }

func (b *builder) Run(ctx context.Context, job build.Job) (build.Result, error) {
	for i := range 1000 {
		fmt.Fprintf(job.Log, "line %d of the build\n", i)
	}
	job.Progress("installing packages", 50)
	if b.begun != nil {
		b.begun <- job
	}
	if b.wait {
		<-ctx.Done()
		b.ended <- ctx.Err()
		return build.Result{}, ctx.Err()
	}
	result := build.Result{}
	if err := os.MkdirAll(job.Output, 0o755); err != nil {
		return result, err
	}
	for _, data := range b.blobs {
		blob := image.Blob{Digest: image.DigestOf(data), SizeBytes: int64(len(data))}
		if err := os.WriteFile(filepath.Join(job.Output, blob.Digest.Hex()), data, 0o644); err != nil {
			return result, err
		}
		result.Blobs = append(result.Blobs, blob)
	}
	result.Digest = result.Blobs[0].Digest
	return result, nil
}

const recipeText = "name: small\ndescription: A small one\nbase:\n  debian: bookworm\n"

func aBuild() api.Build {
	return api.Build{ID: "b1", Attempt: 2, Environment: "small", Recipe: recipeText}
}

func phaseIs(phase api.BuildPhase) func(agentstream.Observed) bool {
	return func(o agentstream.Observed) bool { return len(o.Builds) == 1 && o.Builds[0].Phase == phase }
}

func TestABuildIsCarriedOutUploadedAndToldAndNothingOfItIsLeft(t *testing.T) {
	l, dir := newLeader(t), shortDir(t)
	b := &builder{blobs: [][]byte{[]byte("manifest"), []byte("root"), []byte("kernel")}}
	l.blobs[image.DigestOf([]byte("kernel")).Hex()] = []byte("kernel") // of an earlier build
	l.run(dir, func(c *agent.Config) { c.Builder = b })
	l.want(func(d *agentstream.Desired) { d.Builds = []api.Build{aBuild()} })
	o := l.until("it succeeds", phaseIs(api.BuildSucceeded)).Builds[0]
	if o.ID != "b1" || o.Attempt != 2 || o.Manifest != image.DigestOf([]byte("manifest")) || o.Percent != 100 || o.StartedAt == nil || o.EndedAt == nil {
		t.Errorf("told %+v", o)
	}
	l.until("its output is there", func(agentstream.Observed) bool {
		return int64(len(l.logs["build.b1.2"])) == o.LogBytes && o.LogBytes > 0
	})
	if got := string(l.logs["build.b1.2"]); !strings.HasSuffix(got, "line 999 of the build\n") {
		t.Errorf("its output ends with %q", got[max(0, len(got)-100):])
	}
	if l.puts != 2 || string(l.blobs[image.DigestOf([]byte("root")).Hex()]) != "root" {
		t.Errorf("%d blobs were uploaded, want the 2 that the server lacked", l.puts)
	}
	if l.node.Builder == nil || !l.node.Builder.OK {
		t.Errorf("the node said of itself as a builder: %+v", l.node.Builder)
	}
	l.want(func(d *agentstream.Desired) { d.Builds = nil })
	l.until("it is forgotten", func(o agentstream.Observed) bool { return len(o.Builds) == 0 })
	if entries, _ := os.ReadDir(filepath.Join(dir, "builds")); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}

func TestABuildThatIsNoLongerNamedIsEndedAndTheNextOneBegins(t *testing.T) {
	l, dir := newLeader(t), shortDir(t)
	b := &builder{wait: true, begun: make(chan build.Job, 2), ended: make(chan error, 2)}
	l.run(dir, func(c *agent.Config) { c.Builder = b })
	second := aBuild()
	second.ID = "b2"
	l.want(func(d *agentstream.Desired) { d.Builds = []api.Build{aBuild(), second} })
	if job := <-b.begun; job.ID != "b1-2" {
		t.Errorf("build %q began first", job.ID)
	}
	l.until("one runs and one waits", func(o agentstream.Observed) bool {
		return len(o.Builds) == 2 && o.Builds[0].Phase == api.BuildRunning && o.Builds[0].Step == "installing packages" && o.Builds[1].Phase == api.BuildPending
	})
	l.want(func(d *agentstream.Desired) { d.Builds = []api.Build{second} })
	if err := <-b.ended; err == nil {
		t.Error("the build ended without a reason")
	}
	if job := <-b.begun; job.ID != "b2-2" {
		t.Errorf("build %q began next", job.ID)
	}
	l.until("the first is forgotten", func(o agentstream.Observed) bool { return len(o.Builds) == 1 && o.Builds[0].ID == "b2" })
	if _, err := os.Stat(filepath.Join(dir, "builds", "build.b1.2")); !os.IsNotExist(err) {
		t.Errorf("what the cancelled build had is left: %v", err)
	}
}

func TestABuildWhoseAgentIsRestartedHasFailedAndSaysSo(t *testing.T) {
	l, dir := newLeader(t), shortDir(t)
	b := &builder{wait: true, begun: make(chan build.Job, 1), ended: make(chan error, 1)}
	stop := l.run(dir, func(c *agent.Config) { c.Builder = b })
	l.want(func(d *agentstream.Desired) { d.Builds = []api.Build{aBuild()} })
	<-b.begun
	stop()
	if len(b.ended) != 1 {
		t.Error("the agent ended before its build did")
	}
	l.run(dir, func(c *agent.Config) { c.Builder = b })
	o := l.until("it has failed", phaseIs(api.BuildFailed)).Builds[0]
	if !strings.Contains(o.Message, "restarted during the build") || o.ID != "b1" || o.Attempt != 2 {
		t.Errorf("told %+v", o)
	}
	// What it printed before is not lost.
	l.until("its output is there", func(agentstream.Observed) bool {
		return strings.HasSuffix(string(l.logs["build.b1.2"]), "line 999 of the build\n")
	})
}

func TestABuildThatCannotBeFailsWithTheReason(t *testing.T) {
	l := newLeader(t)
	b := &builder{blobs: [][]byte{[]byte("manifest")}}
	l.run(shortDir(t), func(c *agent.Config) { c.Builder = b })
	for want, change := range map[string]func(*api.Build){
		"line 1":    func(b *api.Build) { b.Recipe = "nonsense: [" },
		"not built": func(b *api.Build) { b.Recipe = "name: small\ndescription: x\nbase:\n  environment: other\n" },
	} {
		one := aBuild()
		one.ID = strings.ReplaceAll(want, " ", "-")
		change(&one)
		l.want(func(d *agentstream.Desired) { d.Builds = []api.Build{one} })
		o := l.until("it fails", func(o agentstream.Observed) bool {
			return len(o.Builds) == 1 && o.Builds[0].ID == one.ID && o.Builds[0].Phase == api.BuildFailed
		})
		if got := o.Builds[0].Message; !strings.Contains(got, want) {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// held is what a node holds of images, as a test says.
type held struct {
	mu      sync.Mutex
	wanted  []nodeimages.Wanted
	whole   bool
	changed chan struct{}
}

func (h *held) Run(ctx context.Context) { <-ctx.Done() }

func (h *held) Want(_ []byte, images []nodeimages.Wanted) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wanted = images
}

func (h *held) Status() []nodeimages.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []nodeimages.Status
	for _, w := range h.wanted {
		list = append(list, nodeimages.Status{Digest: w.Digest, Whole: h.whole, HeldBytes: 1, TotalBytes: 2})
	}
	return list
}

func (h *held) Whole(string) (bool, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.whole, "image sha256:ab: 1 MiB of 2 MiB fetched"
}

func aMember(digest string) agentstream.Member {
	m := agentstream.Member{}
	m.Assignment = api.Assignment{ID: "u1.a.1", ClusterUID: "u1", Generation: 1, Stack: api.StackContainer, Environment: "small", EnvironmentDigest: digest}
	m.Networks = []api.Network{{Index: 3, Prefix: netip.MustParsePrefix("10.64.48.0/20"), Gateway: netip.MustParseAddr("10.64.48.1")}}
	m.Assignment.UserIDs = api.IDRange{First: 3_000_000_000, Count: 65536}
	m.Assignment.Ports = []api.PortClaim{{Address: netip.MustParseAddr("10.64.48.2"), MAC: "02:00:00:03:00:02"}}
	return m
}

func withMember(d *agentstream.Desired, m agentstream.Member) {
	d.Members = []agentstream.Member{m}
	d.Networks = []fabric.Network{{Network: m.Networks[0], Ports: []fabric.Port{fabric.PortOf(&m.Assignment, 0)}}}
}

func TestAMemberWaitsForItsImageAndStartsOnceItIsWhole(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	images := &held{changed: make(chan struct{}, 1)}
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Images, c.ImagesChanged, c.PeerURL = images, images.changed, "http://198.18.0.1:1/images/"
	})
	digest := image.DigestOf([]byte("m"))
	l.want(func(d *agentstream.Desired) {
		d.Images = []agentstream.Image{{Digest: digest}}
		withMember(d, aMember(string(digest)))
	})
	l.until("it says what it waits for", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].Message == `environment "small": image sha256:ab: 1 MiB of 2 MiB fetched` &&
			len(o.Images) == 1 && o.Images[0].HeldBytes == 1 && o.PeerURL != ""
	})
	if calls := host.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "Start") }) {
		t.Errorf("it was started without its image: %q", calls)
	}
	images.mu.Lock()
	images.whole = true
	images.mu.Unlock()
	images.changed <- struct{}{}
	l.until("it starts", func(o agentstream.Observed) bool {
		return len(o.Members) == 1 && o.Members[0].FilesDigest != "" && o.Members[0].Message == ""
	})
}

func TestTheMachineIsPoweredOffOnlyInTheBootTheOrderIsForAndWithNoMemberLeft(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	off := make(chan struct{}, 10)
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Node.BootGeneration = 7
		c.PowerOff = func(context.Context) error { off <- struct{}{}; return nil }
	})
	l.want(func(d *agentstream.Desired) {
		withMember(d, aMember(""))
		d.PowerOff = &agentstream.PowerOff{BootGeneration: 6}
	})
	l.until("the member runs", func(o agentstream.Observed) bool { return len(o.Members) == 1 && o.Members[0].FilesDigest != "" })
	l.want(func(d *agentstream.Desired) { d.PowerOff.BootGeneration = 7 })
	l.want(func(d *agentstream.Desired) {
		d.PowerOff = &agentstream.PowerOff{BootGeneration: 7}
		d.Members = slices.Clone(d.Members)
		d.Members[0].FilesDigest = "again"
	})
	l.until("it goes on meanwhile", func(o agentstream.Observed) bool { return len(o.Members) == 1 && o.Members[0].FilesDigest == "again" })
	if len(off) > 0 {
		t.Fatal("the machine was powered off under a running member, or for another boot")
	}
	l.want(func(d *agentstream.Desired) {
		d.Members = slices.Clone(d.Members)
		d.Members[0].Release = true
	})
	select {
	case <-off:
	case <-time.After(20 * time.Second):
		t.Fatal("the machine was never powered off")
	}
}

func TestAMachineThatNobodyMayPowerOffSaysSo(t *testing.T) {
	l := newLeader(t)
	l.run(shortDir(t), func(c *agent.Config) { c.Node.BootGeneration = 7 })
	l.want(func(d *agentstream.Desired) { d.PowerOff = &agentstream.PowerOff{BootGeneration: 7} })
	l.until("it says so", func(o agentstream.Observed) bool { return strings.Contains(o.PowerOffProblem, "--allow-power-off") })
}

func TestAMachineOfAPausedMemberIsPoweredOffWithTheMember(t *testing.T) {
	l := newLeader(t)
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	off := make(chan struct{}, 10)
	l.run(shortDir(t), func(c *agent.Config) {
		c.Fabric, c.Drivers = networks, []driver.Driver{fake.New(host, networks)}
		c.Node.BootGeneration = 7
		c.PowerOff = func(context.Context) error { off <- struct{}{}; return nil }
	})
	l.want(func(d *agentstream.Desired) { withMember(d, aMember("")) })
	l.until("the member runs", func(o agentstream.Observed) bool { return len(o.Members) == 1 && o.Members[0].FilesDigest != "" })
	l.want(func(d *agentstream.Desired) { d.PowerOff = &agentstream.PowerOff{BootGeneration: 7, WithMembers: true} })
	select {
	case <-off:
	case <-time.After(20 * time.Second):
		t.Fatal("the machine was never powered off")
	}
}
