package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/adler32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// files are served by nginx on all addresses of this machine.
type files struct {
	t    *testing.T
	dir  string
	port string
}

// startNginx serves a directory until the test ends.
func startNginx(t *testing.T) *files {
	t.Helper()
	needs.Program(t, "nginx")
	dir := shortDir(t)
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	f := &files{t, filepath.Join(dir, "files"), port}
	config := fmt.Sprintf(`daemon off; pid %[1]s/pid; error_log %[1]s/error.log; user root; worker_processes 1;
events {}
http { access_log %[1]s/access.log; client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3; uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
server { listen 0.0.0.0:%[2]s; root %[1]s/files; location /slow/ { alias %[1]s/files/; limit_rate 1m; } } }`, dir, port)
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", filepath.Join(dir, "nginx.conf"), "-p", dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(30 * time.Second); ; {
		conn, err := net.Dial("tcp4", "127.0.0.1:"+port)
		if err == nil {
			_ = conn.Close()
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("nginx does not listen: %v: %s", err, said.String())
		}
		select {
		case <-t.Context().Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// add makes a file and returns its checksums.
func (f *files) add(name string, size int) (sha, adler string) {
	f.t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(content)
	if err := os.WriteFile(filepath.Join(f.dir, name), content, 0o644); err != nil {
		f.t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), fmt.Sprintf("%08x", adler32.Checksum(content))
}

// hostAddress is this machine as nodes of "nearmetal dev" reach it: its address on their network.
func (s *site) hostAddress() string {
	s.t.Helper()
	var node struct{ Agent struct{ Underlay netip.Addr } }
	s.mustJSON(&node, "node", "show", "n1")
	own, err := net.InterfaceAddrs()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Contains(node.Agent.Underlay) {
			return p.Addr().String()
		}
	}
	s.t.Fatalf("this machine has no address on the network of node n1 (%+v)", node)
	return ""
}

func (s *site) dataset(name string) api.DatasetStatus {
	s.t.Helper()
	var d api.DatasetStatus
	s.mustJSON(&d, "dataset", "show", name)
	return d
}

func TestMembersReadDatasetsThatTheirNodesHaveVerified(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	web := startNginx(t)
	sha, _ := web.add("run1.root", 20<<20)
	_, adler := web.add("run2.root", 3<<20)
	badSum, _ := web.add("other.root", 1<<20)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	url := "http://" + s.hostAddress() + ":" + web.port

	s.must("dataset", "add", "events", "--file", url+"/run1.root,sha256="+sha, "--file", url+"/run2.root,adler32="+adler+",path=2016/run2.root")
	s.must("cluster", "create", "c1", "--size", "2", "--memory", "256MiB", "--dataset", "events", "--timeout", "2m")
	if got := s.outputOf("c1", "sha256sum < /datasets/events/run1.root; stat -c %s /datasets/events/2016/run2.root; touch /datasets/events/x 2>&1; ls -A /datasets/events"); got !=
		sha+"  -\n3145728\ntouch: cannot touch '/datasets/events/x': Read-only file system\n2016\nrun1.root" {
		t.Errorf("members find %q, want both files, read-only", got)
	}

	// Nodes take it from each other: the second one never asks the source.
	s.must("dataset", "replicate", "events", "--node", "n1,n2", "--timeout", "2m")
	d := s.dataset("events")
	var fromSource, fromPeers int64
	for _, r := range d.Replicas {
		fromSource, fromPeers = fromSource+r.FromSourceBytes, fromPeers+r.FromPeersBytes
		if r.Phase != api.ReplicaWhole || r.HeldBytes != 23<<20 {
			t.Errorf("replica %+v, want it whole", r)
		}
	}
	if len(d.Replicas) != 2 || fromSource != 23<<20 || fromPeers != 23<<20 {
		t.Errorf("%d replicas, %d bytes from the source and %d from nodes; want 2, and one copy of each", len(d.Replicas), fromSource, fromPeers)
	}

	// What members have stays.
	if a := s.cli("dataset", "evict", "events"); a.code != exitConflict || !strings.Contains(a.err, "members on") {
		t.Errorf("an eviction under members: exit code %d, %s", a.code, a.err)
	}
	if a := s.cli("dataset", "delete", "events"); a.code != exitConflict || !strings.Contains(a.err, "c1") {
		t.Errorf("a deletion under a cluster: exit code %d, %s", a.code, a.err)
	}
	s.must("dataset", "check", "events", "--timeout", "1m")

	// A wrong checksum is never handed to a job.
	s.must("dataset", "add", "bad", "--file", url+"/run2.root,sha256="+badSum)
	if a := s.cli("cluster", "create", "c2", "--memory", "256MiB", "--dataset", "bad", "--timeout", "10s"); a.code == 0 {
		t.Error("a cluster with a dataset that is wrong at its source is ready")
	}
	s.eventually(time.Minute, "the wrong checksum to be told", func() bool {
		return strings.Contains(s.must("cluster", "show", "c2"), "SHA-256")
	})
	s.must("cluster", "delete", "c2", "--yes")

	// A crash of everything amid a transfer: it goes on.
	slow, _ := web.add("slow.root", 12<<20)
	s.must("dataset", "add", "slow", "--file", url+"/slow/slow.root,sha256="+slow)
	s.must("dataset", "replicate", "slow", "--node", "n1", "--no-wait")
	s.eventually(time.Minute, "the transfer to begin", func() bool {
		r := s.dataset("slow").Replicas
		return len(r) == 1 && r[0].HeldBytes > 1<<20
	})
	s.kill()
	s.start()
	s.waitForNodes(2)
	s.must("dataset", "replicate", "slow", "--node", "n1", "--timeout", "2m")
	if got := s.outputOf("c1", "sha256sum < /datasets/events/run1.root"); got != sha+"  -" {
		t.Errorf("after the crash members find %q", got)
	}

	s.must("cluster", "delete", "c1", "--yes")
	s.must("dataset", "evict", "events", "--node", "n1")
	s.eventually(time.Minute, "the replica on n1 to be gone", func() bool {
		r := s.dataset("events").Replicas
		return len(r) == 1 && r[0].Node == "n2"
	})
	s.must("dataset", "delete", "events", "slow", "bad")
	s.eventually(time.Minute, "all replicas to be gone from the disks", func() bool {
		left, _ := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "datasets", "*"))
		return len(left) == 0
	})
}

func TestADatasetComesByXRootDWhenItsFirstSourceIsGone(t *testing.T) {
	program(t, ordinary)
	needs.Program(t, "xrootd")
	needs.Program(t, "xrdcp")
	nothingLeft(t)
	space, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = space.Close() }()
	dir, err := os.MkdirTemp("/tmp", "xrd") // its own user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	web := &files{t: t, dir: filepath.Join(dir, "files")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(web.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	sha, adler := web.add("events.root", 9<<20)
	server, err := xrootd.StartServer(t.Context(), space, xrootd.ServerConfig{Address: netip.MustParseAddrPort("127.0.0.1:1094"), Dir: web.dir, Work: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	s := startSite(t, 1)
	host := s.hostAddress()
	s.must("dataset", "add", "far", "--file", "http://"+host+":9/events.root,adler32="+adler+",size=9437184,url=root://"+host+"//events.root")
	s.must("cluster", "create", "c1", "--memory", "256MiB", "--dataset", "far", "--timeout", "2m")
	if got := s.outputOf("c1", "sha256sum < /datasets/far/events.root; stat -c %a:%s /datasets/far/events.root"); got != sha+"  -\n644:9437184" {
		t.Errorf("members find %q, want the file of the server", got)
	}
	// The node does not fetch from itself, whatever a user asks for.
	s.must("dataset", "add", "inside", "--file", "http://127.0.0.1:1094/events.root,adler32="+adler)
	s.must("dataset", "replicate", "inside", "--node", "n1", "--no-wait")
	s.eventually(time.Minute, "the refusal", func() bool {
		r := s.dataset("inside").Replicas
		return len(r) == 1 && strings.Contains(r[0].Message, "is the node itself")
	})
	s.must("cluster", "delete", "c1", "--yes")
	s.must("dataset", "delete", "far", "inside")
}

func TestMembersReadADatasetThroughTheCacheOfTheirNode(t *testing.T) {
	program(t, ordinary)
	for _, name := range []string{"xrootd", "xrdcp", "setpriv"} {
		needs.Program(t, name)
	}
	nothingLeft(t)
	space, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = space.Close() }()
	dir, err := os.MkdirTemp("/tmp", "xrd") // its own user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	web := &files{t: t, dir: filepath.Join(dir, "files")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(web.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	sha, adler := web.add("events.root", 9<<20)
	_, otherAdler := web.add("other.root", 1<<20)
	server, err := xrootd.StartServer(t.Context(), space, xrootd.ServerConfig{Address: netip.MustParseAddrPort("127.0.0.1:1094"), Dir: web.dir, Work: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	s := startSite(t, 1)
	source := "root://" + s.hostAddress() + "/"
	s.must("dataset", "add", "far", "--file", source+"/events.root,adler32="+adler+",size=9437184")
	s.must("dataset", "add", "other", "--file", source+"/other.root,adler32="+otherAdler)
	s.must("cluster", "create", "c1", "--memory", "256MiB", "--dataset", "far:cached", "--dataset", "other:stream", "--timeout", "2m")
	const urls = "cat /etc/nearmetal/datasets/far.urls /etc/nearmetal/datasets/other.urls; ls -d /datasets/* 2>/dev/null | wc -l"
	if got := s.outputOf("c1", urls); got != "root://127.0.0.1:10940//events.root\n"+source+"/other.root\n0" {
		t.Errorf("members find the URLs %q", got)
	}
	const read = "xrdcp -s $(cat /etc/nearmetal/datasets/far.urls) - | sha256sum"
	for i := range 2 {
		if got := s.outputOf("c1", read); got != sha+"  -" {
			t.Errorf("read %d: %q, want the content of the file", i, got)
		}
	}
	cached := func() api.DatasetCache {
		if all := s.dataset("far").Caches; len(all) == 1 {
			return all[0]
		}
		return api.DatasetCache{}
	}
	s.eventually(30*time.Second, "both reads to be counted", func() bool { c := cached(); return c.HitBytes+c.MissBytes >= 18<<20 })
	if c := cached(); c.MissBytes+c.AheadBytes != 9<<20 || c.HitBytes < 9<<20 || c.HeldBytes < 9<<20 || !c.Running {
		t.Errorf("two reads of 9 MiB: %+v; want the second to be hits", c)
	}
	if shown := s.must("dataset", "show", "far"); !strings.Contains(shown, "running") || !strings.Contains(shown, "HITS") {
		t.Errorf("dataset show: %s", shown)
	}
	if explained := s.must("cluster", "explain", "c1"); !strings.Contains(explained, "HITS") || !strings.Contains(explained, "far") || strings.Contains(explained, "too small") {
		t.Errorf("cluster explain: %s", explained)
	}
	// The cache has nothing for this cluster but its dataset, and nothing at all for another one.
	if got := s.outputOf("c1", "xrdcp -s root://127.0.0.1:10940//other.root - 2>&1 | head -c 300"); !strings.Contains(got, "denied") {
		t.Errorf("a file of the same server that is not of the dataset: %q", got)
	}
	s.must("cluster", "create", "c2", "--memory", "256MiB", "--timeout", "2m")
	if got := s.outputOf("c2", "timeout 5 bash -c 'exec 3<>/dev/tcp/127.0.0.1/10940' 2>&1 | tail -n 1"); !strings.Contains(got, "refused") {
		t.Errorf("a cluster without datasets connects to the port of the cache: %q", got)
	}
	// A crash of everything: the next agent's cache has what this one's had, and the member reaches it.
	s.kill()
	s.start()
	s.waitForNodes(1)
	s.eventually(time.Minute, "the cache to run again", func() bool { return cached().Running })
	if got := s.outputOf("c1", read); got != sha+"  -" {
		t.Errorf("after the crash: %q", got)
	}
	s.eventually(30*time.Second, "the read to be counted", func() bool { return cached().HitBytes > 0 })
	if c := cached(); c.HitBytes != 9<<20 || c.MissBytes != 0 {
		t.Errorf("after the crash: %+v; want a hit", c)
	}
	s.must("cluster", "delete", "c1", "c2", "--yes")
	s.must("dataset", "delete", "far", "other")
	s.eventually(time.Minute, "the cache to be gone from the disk", func() bool {
		left, _ := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "caches", "*"))
		return len(left) == 0
	})
}

func TestMembersReadADatasetOfAWebServerThroughTheCacheOfTheirNode(t *testing.T) {
	program(t, ordinary)
	for _, name := range []string{"curl", "setpriv"} {
		needs.Program(t, name)
	}
	nothingLeft(t)
	web := startNginx(t)
	s := startSite(t, 1)
	sha, adler := web.add("events.root", 9<<20)
	source := "http://" + net.JoinHostPort(s.hostAddress(), web.port) + "/events.root"
	s.must("dataset", "add", "far", "--file", source+",path=2016/events.root,adler32="+adler+",size=9437184")
	s.must("cluster", "create", "c1", "--memory", "256MiB", "--dataset", "far:cached", "--timeout", "2m")
	if got := s.outputOf("c1", "cat /etc/nearmetal/datasets/far.urls"); got != "http://127.0.0.1:10940/2016/events.root" {
		t.Errorf("members find the URL %q", got)
	}
	for i := range 2 {
		if got := s.outputOf("c1", "curl -sf $(cat /etc/nearmetal/datasets/far.urls) | sha256sum"); got != sha+"  -" {
			t.Errorf("read %d: %q, want the content of the file", i, got)
		}
	}
	s.eventually(30*time.Second, "both reads to be counted", func() bool {
		all := s.dataset("far").Caches
		return len(all) == 1 && all[0].MissBytes == 9<<20 && all[0].HitBytes == 9<<20 && all[0].HeldBytes >= 9<<20
	})
	if got := s.outputOf("c1", "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:10940/other.root"); got != "404" {
		t.Errorf("a file of the same server that is not of the dataset: %q", got)
	}
	s.must("cluster", "delete", "c1", "--yes")
	s.must("dataset", "delete", "far")
	s.eventually(time.Minute, "the cache to be gone from the disk", func() bool {
		left, _ := filepath.Glob(filepath.Join(s.dir, "nodes", "*", "caches", "*"))
		return len(left) == 0
	})
}

// explained is what the explanation of a cluster tells of its datasets.
type explained struct {
	Choices  []api.DataChoice  `json:"data_choices"`
	Outcomes []api.DataOutcome `json:"data_outcomes"`
}

func TestPlacesOfDatasetsArePredictedAndTheErrorIsKept(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	web := startNginx(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	url := "http://" + s.hostAddress() + ":" + web.port + "/slow/" // 1 MiB/s for each connection
	for _, name := range []string{"first", "second"} {
		sha, _ := web.add(name, 12<<20)
		s.must("dataset", "add", name, "--file", fmt.Sprintf("%s%s,sha256=%s,size=%d", url, name, sha, 12<<20))
	}
	// Nothing was measured: nothing is predicted.
	s.must("cluster", "create", "c1", "--memory", "256MiB", "--dataset", "first", "--timeout", "2m")
	var was explained
	s.mustJSON(&was, "cluster", "explain", "c1")
	if len(was.Outcomes) > 0 {
		t.Errorf("outcomes of predictions that nobody made: %+v", was.Outcomes)
	}
	// The copy told the rate, which holds for the next one, on either node.
	var now explained
	s.eventually(time.Minute, "what was measured to be used", func() bool {
		now = explained{}
		s.mustJSON(&now, "cluster", "explain", "c1")
		for _, c := range now.Choices {
			if c.Choice == "copy" && c.Seconds != nil && strings.Contains(c.Figures, "MB/s") {
				return true
			}
		}
		return false
	})
	s.must("cluster", "create", "c2", "--memory", "256MiB", "--dataset", "second", "--timeout", "2m")
	s.eventually(time.Minute, "the outcome", func() bool {
		now = explained{}
		s.mustJSON(&now, "cluster", "explain", "c2")
		return len(now.Outcomes) == 1
	})
	o := now.Outcomes[0]
	if o.Choice != "copy" || o.Dataset != "second" || o.Bytes != 12<<20 || o.Ratio < 0.3 || o.Ratio > 3 || len(o.Groups) != 1 {
		t.Errorf("%+v, want a copy of 12 MiB that took about what was predicted", o)
	}
	t.Logf("predicted %.2f s, took %.2f s", o.PredictedSeconds, o.Seconds)
	if text := s.must("cluster", "explain", "c2"); !strings.Contains(text, "here") || !strings.Contains(text, "RATIO") {
		t.Errorf("the explanation has no table of choices and outcomes:\n%s", text)
	}
	t.Logf("%s\n%s", s.must("cluster", "explain", "c2"), s.must("dataset", "show", "second"))
	if d := s.dataset("second"); len(d.Errors) != 1 || d.Errors[0].Count != 1 {
		t.Errorf("the dataset sums up %+v, want one copy", d.Errors)
	}
	// What comes from node to node is learned by one dataset, and predicted for the other.
	s.must("dataset", "replicate", "first", "--node", "n1,n2", "--timeout", "2m")
	s.eventually(time.Minute, "a prediction for a copy from the other node", func() bool {
		now = explained{}
		s.mustJSON(&now, "cluster", "explain", "c2")
		return slices.ContainsFunc(now.Choices, func(c api.DataChoice) bool { return c.Choice == "peer" && c.Seconds != nil && !c.Taken })
	})
	s.must("dataset", "replicate", "second", "--node", "n1,n2", "--timeout", "2m")
	s.eventually(time.Minute, "the outcome of a copy from the other node", func() bool {
		return slices.ContainsFunc(s.dataset("second").Errors, func(e api.DataErrors) bool { return e.Choice == "peer" && e.Count == 1 })
	})
	// What was learned outlives the leader.
	s.kill()
	s.start()
	s.waitForNodes(2)
	s.eventually(time.Minute, "the outcome after a restart", func() bool {
		now = explained{}
		s.mustJSON(&now, "cluster", "explain", "c2")
		return len(now.Outcomes) == 1
	})
	s.must("cluster", "delete", "c1", "c2", "--yes")
	s.must("dataset", "delete", "first", "second")
}
