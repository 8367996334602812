package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/adler32"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// anywhere allows this machine itself, on which the sources of tests are.
func anywhere(netip.Addr) error { return nil }

func newFetcher(cfg Config) *Fetcher {
	cfg.Allow = anywhere
	return New(cfg)
}

// contentOf is a file's content, the same each time.
func contentOf(size int) []byte {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(content)
	return content
}

func fileOf(content []byte, urls ...string) File {
	sum := sha256.Sum256(content)
	return File{DatasetFile: api.DatasetFile{
		Path: "events.root", URLs: urls, SizeBytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Adler32: fmt.Sprintf("%08x", adler32.Checksum(content)),
	}}
}

// counted serves a content and counts what it sends.
type counted struct {
	*httptest.Server
	sent atomic.Int64
}

func serve(t *testing.T, handle func(w http.ResponseWriter, r *http.Request)) *counted {
	t.Helper()
	c := &counted{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(&countedWriter{w, c}, r) }))
	t.Cleanup(c.Close)
	return c
}

type countedWriter struct {
	http.ResponseWriter
	of *counted
}

func (w *countedWriter) Write(data []byte) (int, error) {
	w.of.sent.Add(int64(len(data)))
	return w.ResponseWriter.Write(data)
}

func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func honest(content []byte) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// fetched fetches a file and compares it with what it should be.
func fetched(t *testing.T, f *Fetcher, file File, content []byte) Result {
	t.Helper()
	to := filepath.Join(t.TempDir(), "file")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := f.Fetch(ctx, file, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the file has %d bytes (%v), want the %d of the source", len(got), err, len(content))
	}
	left, _ := filepath.Glob(to + ".*")
	if len(left) > 0 {
		t.Errorf("the transfer has left %v", left)
	}
	return result
}

func TestAFileComesInRangesOfAnySize(t *testing.T) {
	for _, size := range []int{0, 1, blockBytes - 1, blockBytes, blockBytes + 1, 9*blockBytes + 17} {
		content := contentOf(size)
		s := serve(t, honest(content))
		file := fileOf(content, s.URL+"/events.root")
		fetched(t, newFetcher(Config{}), file, content)
		if sent := s.sent.Load(); sent != int64(size) && size > 0 {
			t.Errorf("the source sent %d bytes of a file of %d", sent, size)
		}
		file.SizeBytes = 0 // nobody knows
		fetched(t, newFetcher(Config{Streams: 1}), file, content)
	}
}

func TestAServerWithoutRangesSendsTheWholeFile(t *testing.T) {
	content := contentOf(3*blockBytes + 5)
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
	})
	fetched(t, newFetcher(Config{}), fileOf(content, s.URL+"/f"), content)
}

func TestAWrongContentIsNeverAtItsPlace(t *testing.T) {
	content := contentOf(5 * blockBytes)
	wrong := bytes.Clone(content)
	wrong[4*blockBytes+99] ^= 1
	liar, good := serve(t, honest(wrong)), serve(t, honest(content))
	to := filepath.Join(t.TempDir(), "file")
	_, err := newFetcher(Config{}).Fetch(t.Context(), fileOf(content, liar.URL+"/f"), to, nil)
	if !errors.Is(err, ErrChecksum) || !strings.Contains(err.Error(), liar.URL) {
		t.Errorf("a source that lies: %v, want its name and the wrong checksum", err)
	}
	if _, err := os.Stat(to); !os.IsNotExist(err) {
		t.Errorf("the wrong file is at its place: %v", err)
	}
	for _, one := range []File{fileOf(content, liar.URL+"/f", good.URL+"/f"), {DatasetFile: api.DatasetFile{
		Path: "f", URLs: []string{liar.URL + "/f", good.URL + "/f"}, Adler32: fileOf(content).Adler32,
	}}} {
		result := fetched(t, newFetcher(Config{}), one, content)
		if len(result.Problems) != 1 || !strings.Contains(result.Problems[0], liar.URL) || result.Source != good.URL+"/f" {
			t.Errorf("the next source: %+v, want the liar named, and the file from the other", result)
		}
	}
	none := fileOf(content, good.URL+"/f")
	none.Adler32, none.SHA256 = "", ""
	if _, err := newFetcher(Config{}).Fetch(t.Context(), none, to, nil); !errors.Is(err, ErrChecksum) {
		t.Errorf("a file without a checksum: %v, want it refused", err)
	}
}

func TestWhatALiarLeftDoesNotSpoilAnHonestSource(t *testing.T) {
	content := contentOf(20 * blockBytes)
	wrong := bytes.Clone(content)
	wrong[3] ^= 1
	good := serve(t, honest(content))
	var requests atomic.Int64
	liar := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > 2 { // it dies after it has lied
			panic(http.ErrAbortHandler)
		}
		honest(wrong)(w, r)
	})
	fetched(t, newFetcher(Config{Streams: 1}), fileOf(content, liar.URL+"/f", good.URL+"/f"), content)
}

func TestASourceThatDiesAmidAReadIsFollowedByTheNext(t *testing.T) {
	content := contentOf(30 * blockBytes)
	var sent atomic.Int64
	dying := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if sent.Load() > 10*blockBytes {
			panic(http.ErrAbortHandler)
		}
		cut := &cutWriter{ResponseWriter: w, left: 3 * blockBytes / 2}
		defer func() { sent.Add(cut.sent) }()
		http.ServeContent(cut, r, "", time.Time{}, bytes.NewReader(content))
	})
	good := serve(t, honest(content))
	result := fetched(t, newFetcher(Config{Streams: 2}), fileOf(content, dying.URL+"/f", good.URL+"/f"), content)
	if len(result.Problems) != 1 {
		t.Errorf("problems: %v, want that of the source that died", result.Problems)
	}
	if again := good.sent.Load(); again >= int64(len(content)) || again == 0 {
		t.Errorf("the next source sent %d bytes of %d, want what was missing", again, len(content))
	}
}

// cutWriter breaks a connection off after some bytes.
type cutWriter struct {
	http.ResponseWriter
	left, sent int64
}

func (w *cutWriter) Write(data []byte) (int, error) {
	if w.left <= 0 {
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(data[:min(int64(len(data)), w.left)])
	w.left, w.sent = w.left-int64(n), w.sent+int64(n)
	return n, err
}

func TestASourceThatStallsIsFollowedByTheNext(t *testing.T) {
	content := contentOf(4 * blockBytes)
	release := make(chan struct{})
	stalling := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", blockBytes-1, len(content)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(content[:1000])
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	t.Cleanup(func() { close(release) })
	good := serve(t, honest(content))
	result := fetched(t, newFetcher(Config{Patience: 100 * time.Millisecond}), fileOf(content, stalling.URL+"/f", good.URL+"/f"), content)
	if len(result.Problems) != 1 || !strings.Contains(result.Problems[0], "sent nothing for 100ms") {
		t.Errorf("problems: %v, want that the first source sent nothing", result.Problems)
	}
}

func TestASlowSourceThatSendsSomethingIsWaitedFor(t *testing.T) {
	content := contentOf(400)
	slow := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		for chunk := range bytesIn(content, 20) {
			_, _ = w.Write(chunk)
			_ = http.NewResponseController(w).Flush()
			pause(context.Background(), 20*time.Millisecond)
		}
	})
	fetched(t, newFetcher(Config{Patience: 300 * time.Millisecond}), fileOf(content, slow.URL+"/f"), content)
}

func bytesIn(content []byte, n int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(content) > 0 {
			if !yield(content[:n]) {
				return
			}
			content = content[n:]
		}
	}
}

func TestAFileThatChangesAmidAReadIsReadAnew(t *testing.T) {
	before, after := contentOf(12*blockBytes), contentOf(12*blockBytes)
	after[0] ^= 1
	var requests atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		content, tag := after, `"after"`
		if requests.Add(1) <= 2 {
			content, tag = before, `"before"`
		}
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
	fetched(t, newFetcher(Config{Streams: 1}), fileOf(after, s.URL+"/f", s.URL+"/f"), after)
}

func TestTheRateOfAllTransfersIsBounded(t *testing.T) {
	content := contentOf(2 * blockBytes)
	s := serve(t, honest(content))
	f := newFetcher(Config{BytesPerSecond: 4 << 20})
	began := time.Now()
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() { fetched(t, f, fileOf(content, s.URL+"/f"), content) })
	}
	both.Wait()
	// 4 MiB at 4 MiB/s, of which a tenth of a second may come at once.
	if took := time.Since(began); took < 800*time.Millisecond {
		t.Errorf("4 MiB came in %v, want a second at 4 MiB/s", took)
	}
}

func TestANodeItselfIsNotAskedForFiles(t *testing.T) {
	content := contentOf(10)
	inside := serve(t, honest(content))
	outside := httptest.NewServer(http.RedirectHandler(inside.URL+"/secret", http.StatusFound))
	t.Cleanup(outside.Close)
	_, port, _ := net.SplitHostPort(inside.Listener.Addr().String())
	for _, url := range []string{inside.URL + "/f", "http://localhost:" + port + "/f", "http://[::1]:" + port + "/f", "http://127.0.0.2:" + port + "/f", "root://localhost:1094//f"} {
		_, err := New(Config{}).Fetch(t.Context(), fileOf(content, url), filepath.Join(t.TempDir(), "f"), nil)
		if err == nil || !strings.Contains(err.Error(), "is the node itself") {
			t.Errorf("%s: %v, want it refused as the node itself", url, err)
		}
	}
	// A redirect leads nowhere else either: only the address of the first server is allowed.
	first := outside.Listener.Addr().(*net.TCPAddr).Port
	f := New(Config{Allow: func(a netip.Addr) error { return nil }})
	f.client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if !strings.HasSuffix(address, fmt.Sprint(":", first)) {
			return nil, Outside(netip.MustParseAddrPort(address).Addr())
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	if _, err := f.Fetch(t.Context(), fileOf(content, outside.URL+"/f"), filepath.Join(t.TempDir(), "f"), nil); err == nil || !strings.Contains(err.Error(), "is the node itself") {
		t.Errorf("a redirect to the node itself: %v, want it refused", err)
	}
	if inside.sent.Load() > 0 {
		t.Error("the service of this machine was asked")
	}
}

func TestACredentialIsForItsOwnSourceOnly(t *testing.T) {
	content := contentOf(10)
	var leaked atomic.Value
	leaked.Store("")
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		leaked.Store(r.Header.Get("Authorization"))
		honest(content)(w, r)
	})
	url := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "u" || password != "p" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, url+"/f", http.StatusFound)
	})
	file := fileOf(content, s.URL+"/f")
	if _, err := newFetcher(Config{}).Fetch(t.Context(), file, filepath.Join(t.TempDir(), "f"), nil); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without the credential: %v, want the server's refusal", err)
	}
	file.Credential = &api.DatasetCredential{User: "u", Password: "p"}
	fetched(t, newFetcher(Config{}), file, content)
	if got := leaked.Load(); got != "" {
		t.Errorf("the server that the source redirects to got the credential %q", got)
	}
}

// TestATransferThatWasKilledGoesOn kills a process that fetches, again and again.
func TestATransferThatWasKilledGoesOn(t *testing.T) {
	const url, to = "TRANSFER_TEST_URL", "TRANSFER_TEST_TO"
	content := contentOf(24 * blockBytes)
	if os.Getenv(url) != "" { // the process that is killed
		_, err := newFetcher(Config{Streams: 2, BytesPerSecond: 8 << 20}).Fetch(context.Background(), fileOf(content, os.Getenv(url)), os.Getenv(to), nil)
		fmt.Println(err)
		os.Exit(0)
	}
	s := serve(t, honest(content))
	path := filepath.Join(t.TempDir(), "file")
	kills := 0
	for held := int64(0); held < int64(len(content))/2; kills++ {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestATransferThatWasKilledGoesOn$")
		cmd.Env = append(os.Environ(), url+"="+s.URL+"/f", to+"="+path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		goal, before := held+int64(1+kills%3)*blockBytes, held
		for deadline := time.Now().Add(time.Minute); held < goal; held = heldOf(path) {
			if time.Now().After(deadline) {
				t.Fatalf("nothing comes: %d bytes are there", held)
			}
			pause(t.Context(), time.Duration(kills%5)*time.Millisecond)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if held = heldOf(path); held < before {
			t.Fatalf("after a kill %d bytes are there, fewer than the %d before", held, before)
		}
	}
	before := s.sent.Load()
	left := int64(len(content)) - heldOf(path)
	if _, err := newFetcher(Config{}).Fetch(t.Context(), fileOf(content, s.URL+"/f"), path, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("after %d kills the file is wrong (%v)", kills, err)
	}
	if sent := s.sent.Load() - before; sent != left {
		t.Errorf("the last transfer asked for %d bytes, want the %d that were missing", sent, left)
	}
}

// heldOf is what is written down of a part.
func heldOf(path string) int64 {
	p := &part{path: path + ".part", state: path + ".state", came: func(int64) {}, size: -1}
	var err error
	if p.file, err = os.Open(p.path); err != nil {
		return 0
	}
	defer p.close()
	p.load()
	return p.bytes
}

func TestNginxSendsAFile(t *testing.T) {
	needs.Program(t, "nginx")
	content := contentOf(11*blockBytes + 3)
	url := startNginx(t, content)
	fetched(t, newFetcher(Config{}), fileOf(content, url+"/events.root"), content)
	_, err := newFetcher(Config{}).Fetch(t.Context(), fileOf(content, url+"/none.root"), filepath.Join(t.TempDir(), "f"), nil)
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a file that is not there: %v, want 404", err)
	}
}

// startNginx serves a file by nginx.
func startNginx(t *testing.T, content []byte) (url string) {
	t.Helper()
	dir := t.TempDir()
	for _, sub := range []string{"files", "logs"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "files", "events.root"), content, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	_ = l.Close()
	config := fmt.Sprintf(`daemon off; pid %s/pid; error_log %s/logs/error; user root; worker_processes 1;
events {}
http { access_log off; client_body_temp_path %s; proxy_temp_path %s; fastcgi_temp_path %s; uwsgi_temp_path %s; scgi_temp_path %s;
server { listen %s; root %s/files; } }`, dir, dir, dir, dir, dir, dir, dir, at, dir)
	path := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(path, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-c", path, "-p", dir)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; pause(t.Context(), 20*time.Millisecond) {
		conn, err := net.Dial("tcp", at)
		if err == nil {
			_ = conn.Close()
			return "http://" + at
		}
		if time.Now().After(deadline) {
			t.Fatalf("nginx does not listen: %v: %s", err, said.String())
		}
	}
}

func TestXRootDSendsAFile(t *testing.T) {
	space, content := startXRootD(t)
	fetch := func(file File, to string) (result Result, err error) {
		err = errors.Join(space.Do(func() error {
			result, err = newFetcher(Config{Patience: 3 * time.Second}).Fetch(t.Context(), file, to, nil)
			return nil
		}), err)
		return result, err
	}
	to := filepath.Join(t.TempDir(), "file")
	if _, err := fetch(fileOf(content, "root://127.0.0.1//events.root"), to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the file is wrong (%v)", err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the file has mode %v (%v)", info.Mode(), err)
	}
	// What came before is gone on with.
	to = filepath.Join(t.TempDir(), "again")
	p, err := openPart(to, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.expect(int64(len(content)), ""), p.read(bytes.NewReader(content), 0, 3)); err != nil {
		t.Fatal(err)
	}
	p.close()
	var came, most int64
	err = space.Do(func() error {
		_, err := newFetcher(Config{}).Fetch(t.Context(), fileOf(content, "root://127.0.0.1:1094//events.root"), to, func(n int64) {
			came += n
			most = max(most, n)
		})
		return err
	})
	if err != nil || came != int64(len(content)) || most > int64(len(content))-3*blockBytes {
		t.Errorf("going on: %v, %d bytes came, at most %d at once; want %d, of which 3 MiB were there", err, came, most, len(content))
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, content) {
		t.Fatalf("the file that was gone on with is wrong (%v)", err)
	}
	if _, err := fetch(fileOf(content, "root://127.0.0.1//none.root"), to+"2"); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestCopiesThatGoOnOrAreTriedAgainHaveOneStream is about faults that show with some servers, or in a third of the copies only.
func TestCopiesThatGoOnOrAreTriedAgainHaveOneStream(t *testing.T) {
	dir, err := os.MkdirTemp("", "xrdcp") // not in a directory that only root can enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	calls := filepath.Join(dir, "calls")
	client := fmt.Sprintf("#!/bin/sh\necho \"$@\" >>%s\nexit 1\n", calls)
	if err := os.WriteFile(filepath.Join(dir, Program), []byte(client), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(calls, nil, 0o666), os.Chmod(calls, 0o666)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	for held, want := range map[int][]bool{0: {true, false, false}, 1: {false, false, false}} {
		p, err := openPart(filepath.Join(t.TempDir(), "file"), func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		if err := errors.Join(p.expect(2*blockBytes, ""), p.read(bytes.NewReader(make([]byte, blockBytes)), 0, held), os.Truncate(calls, 0)); err != nil {
			t.Fatal(err)
		}
		tr := transfer{Fetcher: newFetcher(Config{Streams: 4}), part: p}
		if err := tr.fillXRootD(t.Context(), &url.URL{Scheme: "root", Host: "127.0.0.1", Path: "/events.root"}); err == nil {
			t.Error("a client that fails was believed")
		}
		data, err := os.ReadFile(calls)
		if err != nil {
			t.Fatal(err)
		}
		var got []bool
		for line := range strings.Lines(string(data)) {
			got = append(got, strings.Contains(line, "--streams 4"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d blocks held: calls with streams %v, want %v; calls:\n%s", held, got, want, data)
		}
	}
}

// startXRootD serves a file by XRootD in a namespace of its own.
func startXRootD(t *testing.T) (netns.Handle, []byte) {
	t.Helper()
	needs.Root(t, "starts XRootD in a namespace")
	needs.Program(t, "xrootd")
	needs.Program(t, "xrdcp")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	if err := space.Do(func() error { return exec.Command("ip", "link", "set", "lo", "up").Run() }); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "xrd") // short: the server has sockets there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	content, files := contentOf(12*blockBytes+7), filepath.Join(dir, "files")
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(files, 0o755), os.WriteFile(filepath.Join(files, "events.root"), content, 0o644)); err != nil {
		t.Fatal(err)
	}
	server, err := xrootd.StartServer(t.Context(), space, xrootd.ServerConfig{Address: netip.MustParseAddrPort("127.0.0.1:1094"), Dir: files, Work: filepath.Join(dir, "work")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return space, content
}
