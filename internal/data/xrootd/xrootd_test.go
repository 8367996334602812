package xrootd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// world is an origin at the far end of a link, and where a cache is to be at its near end.
type world struct {
	near, far netns.Handle
	link      *condition.Link
	dir       string
	origin    *Server
}

const (
	farAddress = "10.98.0.2"
	fileBytes  = 8 << 20
)

func newWorld(t *testing.T, c condition.Condition) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	for at := w.dir; at != "/tmp" && at != "/"; at = filepath.Dir(at) { // servers run as a user of their own
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, space := range []*netns.Handle{&w.near, &w.far} {
		made, err := netns.New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { made.Close() })
		if err := made.Do(func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }); err != nil {
			t.Fatal(err)
		}
		*space = made
	}
	var err error
	w.link, err = condition.Open(condition.Config{
		Near:  condition.End{Space: w.near, Name: "near0", Address: netip.MustParsePrefix("10.98.0.1/24")},
		Far:   condition.End{Space: w.far, Name: "far0", Address: netip.MustParsePrefix(farAddress + "/24")},
		There: c, Back: c,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.link.Close(); err != nil {
			t.Error(err)
		}
	})
	content := make([]byte, fileBytes)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(content)
	files := filepath.Join(w.dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(files, "events"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	w.origin, err = StartServer(t.Context(), w.far, ServerConfig{Address: netip.MustParseAddrPort(farAddress + ":1094"), Dir: files, Work: filepath.Join(w.dir, "origin")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.origin.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) config() CacheConfig {
	return CacheConfig{
		Address: netip.MustParseAddrPort("127.0.0.1:1094"), Origin: farAddress + ":1094", Dir: filepath.Join(w.dir, "cached"), Work: filepath.Join(w.dir, "cache"),
		SizeBytes: 1 << 30, BlockBytes: 128 << 10,
	}
}

func (w *world) cache(t *testing.T) *Cache {
	t.Helper()
	c, err := StartCache(t.Context(), w.near, w.config())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// read reads the file by xrdcp from the near end, and returns its checksum.
func (w *world) read(t *testing.T, from string) (string, error) {
	t.Helper()
	sum := sha256.New()
	var said bytes.Buffer
	err := w.near.Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "xrdcp", "-N", "root://"+from+"//events", "-")
		cmd.Env = append(os.Environ(), "XRD_CONNECTIONRETRY=1", "XRD_CONNECTIONWINDOW=2", "XRD_STREAMERRORWINDOW=2", "XRD_REQUESTTIMEOUT=5")
		cmd.Stdout, cmd.Stderr = sum, &said
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, said.String())
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

func (w *world) want(t *testing.T) string {
	t.Helper()
	f, err := os.Open(filepath.Join(w.dir, "files", "events"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func (w *world) crossed() int64 {
	_, back := w.link.Counters()
	return back.Bytes
}

func TestWhatWasReadOnceDoesNotCrossTheLinkAgain(t *testing.T) {
	w := newWorld(t, condition.Condition{Delay: 10 * time.Millisecond})
	c := w.cache(t)
	stopped := false
	defer func() {
		if !stopped {
			_ = c.Stop()
		}
	}()
	want := w.want(t)
	for i, from := range []string{farAddress + ":1094", "127.0.0.1:1094", "127.0.0.1:1094"} {
		before := w.crossed()
		if got, err := w.read(t, from); err != nil || got != want {
			t.Fatalf("read %d, from %s: %s, %v; want %s", i, from, got, err, want)
		}
		bytes := w.crossed() - before
		if near := i == 2; near && bytes > fileBytes/10 || !near && bytes < fileBytes {
			t.Errorf("read %d, from %s: %d B crossed the link, of a file of %d B", i, from, bytes, fileBytes)
		}
	}
	again, late := time.NewTicker(10*time.Millisecond), time.Now().Add(20*time.Second)
	defer again.Stop()
	for c.Counters().Files < 2 && time.Now().Before(late) {
		<-again.C
	}
	if got := c.Counters(); got.Files != 2 || got.MissBytes == 0 || got.HitBytes < fileBytes || got.BypassBytes != 0 || got.CorruptBlocks != 0 {
		t.Errorf("the cache counted %+v", got)
	}

	stopped = true
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	restarted := w.cache(t)
	defer restarted.Stop()
	before := w.crossed()
	if got, err := w.read(t, "127.0.0.1:1094"); err != nil || got != want || w.crossed()-before > fileBytes/10 {
		t.Errorf("after a restart: %s, %v, and %d B crossed the link", got, err, w.crossed()-before)
	}
}

func TestAFileThatTheOriginLacksIsAnError(t *testing.T) {
	w := newWorld(t, condition.Condition{})
	c := w.cache(t)
	defer c.Stop()
	if err := os.Remove(filepath.Join(w.dir, "files", "events")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.read(t, "127.0.0.1:1094"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("reading what is not there: %v", err)
	}
}

func TestTheLastWordsOfACacheThatDoesNotStartAreTold(t *testing.T) {
	w := newWorld(t, condition.Condition{})
	cfg := w.config()
	cfg.Origin = "+not-a-host:not-a-port"
	_, err := StartCache(t.Context(), w.near, cfg)
	if err == nil || !strings.Contains(err.Error(), "not-a-host") {
		t.Errorf("a cache of nowhere: %v", err)
	}
}

func TestBadConfigurationsAreRefused(t *testing.T) {
	good := CacheConfig{Origin: "far:1094", Dir: "/a", Work: "/b", SizeBytes: 1 << 30, BlockBytes: 1 << 20}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*CacheConfig){
		"no origin":                     func(c *CacheConfig) { c.Origin = "" },
		"an origin with another line":   func(c *CacheConfig) { c.Origin = "far:1094\nall.export /etc" },
		"a relative directory":          func(c *CacheConfig) { c.Dir = "cached" },
		"a directory with another line": func(c *CacheConfig) { c.Work = "/b\nall.export /etc" },
		"blocks that are too small":     func(c *CacheConfig) { c.BlockBytes = 1024 },
		"blocks of odd sizes":           func(c *CacheConfig) { c.BlockBytes = 5000 },
		"a cache that is too small":     func(c *CacheConfig) { c.SizeBytes = 4 << 20 },
		"a path with a further right":   func(c *CacheConfig) { c.Paths = []string{"/a", "/b rl /"} },
		"a path with another line":      func(c *CacheConfig) { c.Paths = []string{"/a\nu * / a"} },
		"watermarks upside down":        func(c *CacheConfig) { c.LowPercent, c.HighPercent = 90, 80 },
		"directories elsewhere":         func(c *CacheConfig) { c.Base = "/c" },
		"less than no blocks ahead":     func(c *CacheConfig) { c.Prefetch = -1 },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// helperDir is where the helper of the next test has its server.
const helperDir = "NEARMETAL_TEST_XROOTD_DIR"

func TestAServerEndsWithTheProcessThatStartedIt(t *testing.T) {
	if dir := os.Getenv(helperDir); dir != "" { // the helper: it starts a server, says its number, and waits for its own end
		space, err := netns.Current()
		if err != nil {
			t.Fatal(err)
		}
		s, err := StartServer(t.Context(), space, ServerConfig{Address: netip.MustParseAddrPort("127.0.0.1:1094"), Dir: dir, Work: filepath.Join(dir, "work")})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pid"), []byte(fmt.Sprint(s.PID())), 0o600); err != nil {
			t.Fatal(err)
		}
		<-s.Ended()
		return
	}
	w := newWorld(t, condition.Condition{})
	dir := filepath.Join(w.dir, "helper")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	helper := exec.Command(os.Args[0], "-test.run", "^TestAServerEndsWithTheProcessThatStartedIt$")
	helper.Env = append(os.Environ(), helperDir+"="+dir)
	if err := w.near.Do(helper.Start); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = helper.Process.Kill(); _ = helper.Wait() }()
	again, late := time.NewTicker(10*time.Millisecond), time.Now().Add(40*time.Second)
	defer again.Stop()
	var pid []byte
	for len(pid) == 0 {
		if pid, _ = os.ReadFile(filepath.Join(dir, "pid")); time.Now().After(late) {
			t.Fatal("the helper started no server")
		}
		<-again.C
	}
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	runs := func() bool {
		status, err := os.ReadFile("/proc/" + string(pid) + "/stat")
		return err == nil && !strings.Contains(string(status), ") Z ")
	}
	for ; runs(); <-again.C {
		if time.Now().After(late) {
			number, _ := strconv.Atoi(string(pid))
			_ = syscall.Kill(number, syscall.SIGKILL)
			t.Fatal("the server goes on though the process that started it was killed")
		}
	}
}

func TestWhatIsFetchedAgainIsCounted(t *testing.T) {
	const closed = `{"event":"file_close","lfn":"/a","size":1000,"blk_size":100,"n_blks_done":%d,"access_cnt":%d,"b_hit":%d,"b_miss":%d}`
	var c Counters
	for _, step := range []struct {
		done, accesses, hit, miss     int
		wantFetched, wantAhead, again int64
	}{
		{5, 1, 0, 300, 500, 200, 0},     // 300 B were asked for, and 5 blocks were fetched
		{5, 2, 300, 0, 500, 200, 0},     // all of it was there
		{10, 3, 500, 500, 1000, 200, 0}, // the rest
		{4, 1, 0, 400, 1400, 200, 400},  // it was removed meanwhile
		{10, 2, 0, 600, 2000, 200, 400},
	} {
		c.add(fmt.Sprintf(closed, step.done, step.accesses, step.hit, step.miss))
		if c.FetchedBytes != step.wantFetched || c.AheadBytes() != step.wantAhead || c.AgainBytes != step.again {
			t.Errorf("after %+v: %+v, %d B ahead", step, c, c.AheadBytes())
		}
	}
}
