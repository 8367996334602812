package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const farAddress = "10.98.1.2"

// world is an origin at the far end of a link, and a node at its near end.
type world struct {
	t         *testing.T
	near, far netns.Handle
	dir       string
	origin    *xrootd.Server
	sums      map[string]string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	needs.Program(t, "xrootd")
	needs.Program(t, "xrdcp")
	w := &world{t: t, sums: map[string]string{}}
	var err error
	if w.dir, err = os.MkdirTemp("/tmp", "xrdcache"); err != nil { // the server of files must reach it
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, space := range []*netns.Handle{&w.near, &w.far} {
		made, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = made.Close() })
		if err := made.Do(func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }); err != nil {
			t.Fatal(err)
		}
		*space = made
	}
	link, err := condition.Open(condition.Config{
		Near: condition.End{Space: w.near, Name: "near0", Address: netip.MustParsePrefix("10.98.1.1/24")},
		Far:  condition.End{Space: w.far, Name: "far0", Address: netip.MustParsePrefix(farAddress + "/24")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = link.Close() })
	files := filepath.Join(w.dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	w.origin, err = xrootd.StartServer(t.Context(), w.far, xrootd.ServerConfig{
		Address: netip.MustParseAddrPort(farAddress + ":1094"), Dir: files, Work: filepath.Join(w.dir, "origin"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.origin.Stop() })
	return w
}

// add makes a file at the origin, and returns it as a file of a dataset.
func (w *world) add(name string, size int64) api.DatasetFile {
	w.t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(content)
	if err := os.WriteFile(filepath.Join(w.dir, "files", name), content, 0o644); err != nil {
		w.t.Fatal(err)
	}
	w.sums[name] = fmt.Sprintf("%x", sha256.Sum256(content))
	return api.DatasetFile{Path: name, URLs: []string{"root://" + farAddress + "//" + name}, SizeBytes: size}
}

// store opens the node's caches and keeps them until the returned function is called.
func (w *world) store(change func(*Config)) (*Store, func()) {
	w.t.Helper()
	parent := filepath.Join(w.dir, "node") // nobody but root enters it, as with a node's own directory
	if err := os.MkdirAll(parent, 0o700); err != nil {
		w.t.Fatal(err)
	}
	cfg := Config{Dir: filepath.Join(parent, "caches"), MaxBytes: 1 << 30, BlockBytes: 128 << 10, PatienceSeconds: 3, Space: &w.near}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	stop := func() { cancel(); <-ended }
	w.t.Cleanup(stop)
	return s, stop
}

// until waits until what a test waits for is so.
func (w *world) until(what string, within time.Duration, ok func() bool) {
	w.t.Helper()
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	for late := time.Now().Add(within); !ok(); <-ticks.C {
		if time.Now().After(late) {
			w.t.Fatalf("%s: not within %v", what, within)
		}
	}
}

// ready waits until a dataset can be read, and returns where.
func (w *world) ready(s *Store, uid string) string {
	w.t.Helper()
	why := "it was not asked for"
	defer func() {
		if w.t.Failed() {
			w.t.Log(why)
		}
	}()
	w.until("the cache is there", time.Minute, func() (ok bool) { ok, why = s.Ready(uid, false); return ok })
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[uid].at.String()
}

func (w *world) state(s *Store, uid string) dataset.CacheState {
	w.t.Helper()
	for _, c := range s.States() {
		if c.UID == uid {
			return c
		}
	}
	return dataset.CacheState{}
}

// read reads a file from the near end. Its client is as patient as its programs are by default.
func (w *world) read(at, name string, options ...string) error {
	sum := sha256.New()
	var said bytes.Buffer
	err := w.near.Do(func() error {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "xrdcp", append(options, "-N", "-s", "root://"+at+"//"+name, "-")...)
		cmd.Stdout, cmd.Stderr = sum, &said
		return cmd.Run()
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, said.String())
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != w.sums[name] {
		return fmt.Errorf("%s has the wrong content", name)
	}
	return nil
}

func (w *world) mustRead(at, name string) {
	w.t.Helper()
	if err := w.read(at, name); err != nil {
		w.t.Fatal(err)
	}
}

func TestWhatWasReadOnceIsAHitAndSurvivesTheAgent(t *testing.T) {
	w := newWorld(t)
	order := dataset.CacheOrder{UID: "d1", Name: "events", Files: []api.DatasetFile{w.add("run1.root", 5<<20)}}
	s, stop := w.store(nil)
	s.Want([]dataset.CacheOrder{order})
	at := w.ready(s, "d1")
	w.mustRead(at, "run1.root")
	w.mustRead(at, "run1.root")
	var c dataset.CacheState
	w.until("both reads are counted", 20*time.Second, func() bool { c = w.state(s, "d1"); return c.HitBytes+c.MissBytes >= 10<<20 })
	if c.MissBytes+c.AheadBytes != 5<<20 || c.HitBytes < 5<<20 || c.AgainBytes != 0 || c.HeldBytes < 5<<20 || c.HeldBytes > 6<<20 {
		t.Errorf("two reads of 5 MiB: %+v", c)
	}
	stop()
	if got := w.processes(); got != 0 {
		t.Errorf("%d servers of caches are left without their agent", got)
	}
	s, stop = w.store(nil)
	s.Want([]dataset.CacheOrder{order})
	w.mustRead(w.ready(s, "d1"), "run1.root")
	w.until("the read is counted", 20*time.Second, func() bool { c = w.state(s, "d1"); return c.HitBytes+c.MissBytes > 0 })
	if c.HitBytes != 5<<20 || c.MissBytes+c.AheadBytes != 0 {
		t.Errorf("a read with the next agent: %+v", c)
	}

	// Nobody wants it any more: it ends, and what it has stays until room is needed.
	s.Want(nil)
	w.until("it ends", 20*time.Second, func() bool { return !w.state(s, "d1").Running })
	if c := w.state(s, "d1"); c.HeldBytes < 5<<20 || w.processes() != 0 {
		t.Errorf("unwanted: %+v, %d processes", c, w.processes())
	}
	// A deleted dataset leaves nothing.
	s.Want([]dataset.CacheOrder{{UID: "d1", Purge: true}})
	w.until("it is gone", 20*time.Second, func() bool { return len(s.States()) == 0 })
	if left, _ := os.ReadDir(s.cfg.Dir); len(left) != 0 {
		t.Errorf("left of a deleted dataset: %v", left)
	}
	stop()
	var rules []byte
	_ = w.near.Do(func() (err error) { rules, err = exec.Command("nft", "list", "ruleset").Output(); return err })
	if len(bytes.TrimSpace(rules)) != 0 {
		t.Errorf("rules are left: %s", rules)
	}
}

// processes counts the servers in the near namespace.
func (w *world) processes() int {
	own, err := w.near.Inode()
	if err != nil {
		w.t.Fatal(err)
	}
	found, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	count := 0
	for _, path := range found {
		if to, err := os.Readlink(path); err == nil && to == fmt.Sprintf("net:[%d]", own) {
			if name, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "comm")); err == nil && strings.HasPrefix(string(name), "xrootd") {
				count++
			}
		}
	}
	return count
}

func TestNobodyReadsThroughACacheWhatIsNotOfItsDataset(t *testing.T) {
	w := newWorld(t)
	w.add("other.root", 1<<20)
	s, _ := w.store(nil)
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{w.add("run1.root", 1<<20)}}})
	at := w.ready(s, "d1")
	if err := w.read(at, "other.root"); err == nil || !strings.Contains(err.Error(), "denied") {
		t.Errorf("a file of the same server: %v", err)
	}
	w.mustRead(at, "run1.root")

	// From elsewhere nobody reads through it at all.
	_, port, _ := strings.Cut(at, ":")
	err := w.far.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, "xrdcp", "-N", "-s", "root://10.98.1.1:"+port+"//run1.root", "-")
		cmd.Env = append(os.Environ(), "XRD_CONNECTIONRETRY=1", "XRD_CONNECTIONWINDOW=2", "XRD_STREAMERRORWINDOW=0", "XRD_REQUESTTIMEOUT=5")
		return cmd.Run()
	})
	if err == nil {
		t.Error("another machine reads through the node's cache")
	}
}

func TestACacheDoesNotReadFromItsOwnNode(t *testing.T) {
	w := newWorld(t)
	s, _ := w.store(nil)
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{w.add("run1.root", 1<<20)}}})
	host, port, _ := strings.Cut(w.ready(s, "d1"), ":")
	for _, group := range []int{xrootd.Group, 0} {
		err := w.near.Do(func() error {
			return exec.Command("setpriv", "--regid", fmt.Sprint(group), "--clear-groups", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%s", host, port)).Run()
		})
		if refused := err != nil; refused != (group == xrootd.Group) {
			t.Errorf("a connection by a process of group %d to a server of the node: %v", group, err)
		}
	}
	s, _ = w.store(func(c *Config) {
		c.Dir += "2"
		c.Allow = func(a netip.Addr) error { return fmt.Errorf("%s is the node itself", a) }
	})
	s.Want([]dataset.CacheOrder{{UID: "d2", Name: "inside", Files: []api.DatasetFile{{URLs: []string{"root://127.0.0.1//a"}}}}})
	w.until("an origin on the node is refused", 20*time.Second, func() bool { return strings.Contains(w.state(s, "d2").Message, "is the node itself") })
}

func TestAServerThatDiesIsThereAgain(t *testing.T) {
	w := newWorld(t)
	s, _ := w.store(nil)
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{w.add("run1.root", 1<<20)}}})
	w.mustRead(w.ready(s, "d1"), "run1.root")
	w.until("the read is counted, and what was fetched is noted", 20*time.Second, func() bool { c := w.state(s, "d1"); return c.HitBytes+c.MissBytes >= 1<<20 })
	s.mu.Lock()
	pid := s.all["d1"].running.PID()
	s.mu.Unlock()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.until("its end is noticed", 20*time.Second, func() bool { return w.state(s, "d1").Restarts == 1 })
	w.mustRead(w.ready(s, "d1"), "run1.root")
	w.until("what it had is there", 20*time.Second, func() bool { return w.state(s, "d1").HitBytes >= 1<<20 })
	if c := w.state(s, "d1"); c.MissBytes > 1<<20 || c.AgainBytes != 0 {
		t.Errorf("after its server died: %+v", c)
	}
}

func TestAnOriginThatStallsIsAnErrorForItsReaders(t *testing.T) {
	w := newWorld(t)
	s, _ := w.store(nil)
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{w.add("run1.root", 96<<20), w.add("run2.root", 1<<20)}}})
	at := w.ready(s, "d1")
	defer func() { _ = syscall.Kill(w.origin.PID(), syscall.SIGCONT) }()
	amid := make(chan error, 1)
	go func() { amid <- w.read(at, "run1.root", "--xrate", "8m") }()
	w.until("some of the file was fetched", 20*time.Second, func() bool { return onDisk(s.path("d1", dirStore)) > 1<<20 })
	if err := syscall.Kill(w.origin.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := <-amid; err == nil || strings.Contains(err.Error(), "signal") {
		t.Errorf("an origin that stands still amid a file: %v; want an error of the reader itself", err)
	} else {
		t.Log(err)
	}
	if err := w.read(at, "run2.root"); err == nil || strings.Contains(err.Error(), "signal") {
		t.Errorf("reading from an origin that stands still: %v; want an error of the reader itself", err)
	} else {
		t.Log(err)
	}
	if err := syscall.Kill(w.origin.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	w.until("the origin is read again", time.Minute, func() bool { return w.read(at, "run2.root") == nil })
}

func TestACacheThatIsTooSmallSaysSo(t *testing.T) {
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed") // XCache looks at its size once a minute
	w := newWorld(t)
	const size = 48 << 20
	var files []api.DatasetFile
	for i := range 4 {
		files = append(files, w.add(fmt.Sprintf("run%d.root", i), size))
	}
	s, _ := w.store(func(c *Config) { c.MaxBytes = leastBytes })
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: files}})
	at := w.ready(s, "d1")
	all := func() {
		for _, f := range files {
			w.mustRead(at, f.Path)
		}
	}
	all()
	w.until("files make room", 3*time.Minute, func() bool { return w.state(s, "d1").HeldBytes <= leastBytes })
	if c := w.state(s, "d1"); c.TooSmall(c.SizeBytes) {
		t.Errorf("it says that it is too small before anything was fetched again: %+v", c)
	}
	all()
	w.until("that it is too small is said", 30*time.Second, func() bool { return strings.Contains(w.state(s, "d1").Message, "too small") })
	if c := w.state(s, "d1"); c.AgainBytes < size || c.AgainBytes > 4*size {
		t.Errorf("%d MiB fetched again, of 192 MiB that were read again", c.AgainBytes>>20)
	}
}

func TestAPreloadedDatasetIsVerifiedAndReadWithoutItsOrigin(t *testing.T) {
	w := newWorld(t)
	good, bad := w.add("run1.root", 9<<20), w.add("run2.root", 1<<20)
	good.SHA256, bad.SHA256 = w.sums["run1.root"], w.sums["run1.root"]
	s, _ := w.store(nil)
	s.Want([]dataset.CacheOrder{
		{UID: "d1", Name: "events", Files: []api.DatasetFile{good}, Preload: true}, {UID: "d2", Name: "bad", Files: []api.DatasetFile{bad}, Preload: true},
	})
	w.until("it is preloaded", time.Minute, func() bool { ok, _ := s.Ready("d1", true); return ok })
	at := w.ready(s, "d1")
	w.until("the wrong one is refused", time.Minute, func() bool {
		ok, why := s.Ready("d2", true)
		return !ok && strings.Contains(why, "SHA-256 is "+w.sums["run2.root"])
	})
	w.until("nothing is kept of the wrong one", 20*time.Second, func() bool { return onDisk(s.path("d2", dirStore)) == 0 })
	w.until("all of it is on the disk", 20*time.Second, func() bool { return w.state(s, "d1").HeldBytes >= 9<<20 })
	if err := w.origin.Stop(); err != nil {
		t.Fatal(err)
	}
	w.mustRead(at, "run1.root")
	w.until("the read is a hit", 20*time.Second, func() bool { return w.state(s, "d1").HitBytes >= 9<<20 })
}

func TestACacheThatIsReadMakesNoRoom(t *testing.T) {
	w := newWorld(t)
	s, _ := w.store(func(c *Config) { c.MaxBytes = 100 << 20 })
	first := dataset.CacheOrder{UID: "d1", Name: "first", Files: []api.DatasetFile{w.add("run1.root", 60<<20)}}
	second := dataset.CacheOrder{UID: "d2", Name: "second", Files: []api.DatasetFile{w.add("run2.root", 60<<20)}}
	s.Want([]dataset.CacheOrder{first})
	w.mustRead(w.ready(s, "d1"), "run1.root")
	s.Want([]dataset.CacheOrder{first, second})
	w.until("the second one waits", 20*time.Second, func() bool {
		ok, why := s.Ready("d2", false)
		return !ok && strings.Contains(why, "caches of other datasets take")
	})
	if c := w.state(s, "d1"); !c.Running || c.HeldBytes < 60<<20 {
		t.Errorf("the first one: %+v", c)
	}
	s.Want([]dataset.CacheOrder{second})
	w.mustRead(w.ready(s, "d2"), "run2.root")
	if c := w.state(s, "d1"); c.HeldBytes != 0 {
		t.Errorf("the first one, which nobody reads any more: %+v; want that it has made room", c)
	}
}
