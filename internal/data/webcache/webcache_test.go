package webcache

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// origin is a web server with one file, which notes what it is asked.
type origin struct {
	*httptest.Server
	url     string
	content []byte
	mu      sync.Mutex
	ranges  []string
	headers []http.Header
}

const blockBytes = 64 << 10

func newOrigin(t *testing.T, bytesOf int) *origin {
	o := &origin{content: make([]byte, bytesOf)}
	_, _ = rand.Read(o.content)
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.ranges, o.headers = append(o.ranges, r.Header.Get("Range")), append(o.headers, r.Header.Clone())
		o.mu.Unlock()
		switch r.URL.Path {
		case "/data/run1.root":
			w.Header().Set("Cache-Control", "no-store")
			http.ServeContent(w, r, "", time.Unix(1, 0), bytes.NewReader(o.content))
		case "/moved":
			http.Redirect(w, r, "http://127.0.0.1:1/secret", http.StatusFound)
		default:
			http.Error(w, "not for everybody", http.StatusForbidden)
		}
	}))
	o.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}}
	o.StartTLS()
	t.Cleanup(o.Close)
	_, port, _ := net.SplitHostPort(o.Listener.Addr().String())
	o.url = "https://localhost:" + port
	return o
}

// certificate is one of localhost that stands for itself.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	made := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origin"}, DNSNames: []string{"localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, made, made, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// fetched is how many requests the origin has had.
func (o *origin) fetched() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.ranges)
}

// authorities is a file with the certificate of the origin.
func (o *origin) authorities(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "ca.pem")
	for at := filepath.Dir(path); at != "/tmp" && at != "/"; at = filepath.Dir(at) { // the server runs as a user of its own
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.TLS.Certificates[0].Certificate[0]}), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func begin(t *testing.T, change func(*Config)) *Cache {
	t.Helper()
	needs.Program(t, Program)
	needs.Root(t, "caches run as users of their own")
	space, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	cfg := Config{Base: filepath.Join(t.TempDir(), "cache"), SizeBytes: 16 << 20, BlockBytes: blockBytes, PatienceSeconds: 3}
	change(&cfg)
	c, err := Start(t.Context(), space, 61_094, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ask asks a cache for a path, with headers of the reader's choice.
func ask(t *testing.T, c *Cache, method, path string, headers ...string) (int, []byte) {
	t.Helper()
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) }}}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://cache"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, body
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	again, late := time.NewTicker(10*time.Millisecond), time.Now().Add(20*time.Second)
	defer again.Stop()
	for ; !ok(); <-again.C {
		if time.Now().After(late) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func TestBlocksAreFetchedOnceWithTheCredentialThatReadersNeverSee(t *testing.T) {
	o := newOrigin(t, 10*blockBytes+100)
	var cfg Config
	c := begin(t, func(made *Config) {
		made.Files = []File{{"/run1.root", o.url + "/data/run1.root"}, {"/moved", o.url + "/moved"}, {"/denied", o.url + "/other"}}
		made.Authorities, made.Authorization = o.authorities(t), "Bearer t0ken"
		cfg = *made
	})
	// A part of a file fetches the blocks that it is in.
	code, body := ask(t, c, "GET", "/run1.root", "Range", "bytes=65536-65545", "Authorization", "Bearer theirs", "X-Mine", "1", "Cookie", "a=b")
	if code != http.StatusPartialContent || !bytes.Equal(body, o.content[65536:65546]) {
		said, _ := os.ReadFile(filepath.Join(cfg.Base, fileLog))
		t.Fatalf("a part: %d, %d B: %s", code, len(body), said)
	}
	o.mu.Lock()
	if len(o.ranges) != 1 || o.ranges[0] != "bytes=65536-131071" {
		t.Errorf("the origin was asked for %q, want one block", o.ranges)
	}
	if h := o.headers[0]; h.Get("Authorization") != "Bearer t0ken" || h.Get("Cookie")+h.Get("X-Mine") != "" {
		t.Errorf("the origin was sent %v; want the dataset's credential, and nothing of the reader's", h)
	}
	o.mu.Unlock()
	until(t, "the miss is counted", func() bool { return c.Counters().MissBytes == blockBytes })
	for range 2 {
		if code, body = ask(t, c, "GET", "/run1.root"); code != http.StatusOK || !bytes.Equal(body, o.content) {
			t.Fatalf("the whole: %d, %d B", code, len(body))
		}
	}
	if n := o.fetched(); n != 11 {
		t.Errorf("the origin was asked %d times for a file of 11 blocks, which was read twice", n)
	}
	all := int64(len(o.content))
	until(t, "all is counted", func() bool { g := c.Counters(); return g.Blocks == 23 })
	if got := c.Counters(); got.MissBytes != all || got.HitBytes != all+blockBytes || got.AgainBytes != 0 {
		t.Errorf("counted %+v; want %d B missed and %d B hit", got, all, all+blockBytes)
	}
	// Nothing else is read through it, and nothing is changed.
	for _, path := range []string{"/", "/data/run1.root", "/run1.root/../denied2", "/elsewhere"} {
		if code, _ := ask(t, c, "GET", path); code != http.StatusNotFound {
			t.Errorf("%s: %d, want that it is not there", path, code)
		}
	}
	if code, _ := ask(t, c, "PUT", "/run1.root"); code != http.StatusForbidden {
		t.Errorf("writing: %d", code)
	}
	if code, body := ask(t, c, "GET", "/moved"); code != http.StatusBadGateway || !strings.Contains(string(body), "elsewhere") {
		t.Errorf("a redirect: %d, %q", code, body)
	}
	if code, _ := ask(t, c, "GET", "/denied"); code != http.StatusForbidden {
		t.Errorf("a refusal of the origin: %d", code)
	}
	// What was fetched is there for the next one.
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	before := o.fetched()
	next := begin(t, func(made *Config) { *made = cfg })
	if code, body := ask(t, next, "GET", "/run1.root"); code != http.StatusOK || !bytes.Equal(body, o.content) || o.fetched() != before {
		t.Errorf("after a restart: %d, %d B, %d more requests", code, len(body), o.fetched()-before)
	}
}

func TestASourceWithACertificateOfNobodyIsNotRead(t *testing.T) {
	o := newOrigin(t, 100)
	c := begin(t, func(made *Config) {
		made.Files, made.Authorization = []File{{"/run1.root", o.url + "/data/run1.root"}}, "Bearer t0ken"
	})
	if code, _ := ask(t, c, "GET", "/run1.root"); code != http.StatusBadGateway || o.fetched() != 0 {
		t.Errorf("a source that anybody could be: %d, asked %d times; want no request, which would have the credential", code, o.fetched())
	}
}

func TestConfigurationsWithMoreThanFilesAreRefused(t *testing.T) {
	good := Config{Base: "/a", SizeBytes: 1 << 30, BlockBytes: 1 << 20, Files: []File{{"/a", "https://far/a?x=1"}}, Authorization: "Bearer a.b-c="}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"a path with another directive": func(c *Config) { c.Files = []File{{"/a {} location /", "https://far/a"}} },
		"a URL with another directive":  func(c *Config) { c.Files = []File{{"/a", "https://far/a; return 200"}} },
		"a URL with a variable":         func(c *Config) { c.Files = []File{{"/a", "https://far/$host"}} },
		"a credential with a quote":     func(c *Config) { c.Authorization = `Bearer a" "b` },
		"blocks that are too small":     func(c *Config) { c.BlockBytes = 100 },
		"no files":                      func(c *Config) { c.Files = nil },
	} {
		bad := good
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWhatIsFetchedAgainIsCountedByBlock(t *testing.T) {
	var c Counters
	for _, line := range []string{
		`{"path":"/a","status":"MISS","range":"bytes 0-99/250","length":"100","code":"206"}`,
		`{"path":"/a","status":"HIT","range":"bytes 0-99/250","length":"100","code":""}`,
		`{"path":"/a","status":"MISS","range":"bytes 0-99/250","length":"100","code":"206"}`,
		`{"path":"/b","status":"MISS","range":"","length":"70","code":"200"}`,
		`{"path":"/b","status":"MISS","range":"","length":"70","code":"403"}`,
		`{"path":"/","status":"","range":"","length":"","code":""}`,
	} {
		c.add(line)
	}
	if c.HitBytes != 100 || c.MissBytes != 270 || c.AgainBytes != 100 || c.Blocks != 4 {
		t.Errorf("counted %+v", c)
	}
}

func TestSeveralRangesAtOnceAreAnsweredWithTheWholeFile(t *testing.T) {
	o := newOrigin(t, 3*blockBytes)
	c := begin(t, func(made *Config) {
		made.Files, made.Authorities = []File{{"/run1.root", o.url + "/data/run1.root"}}, o.authorities(t)
	})
	if code, body := ask(t, c, "GET", "/run1.root", "Range", "bytes=0-9,100000-100009"); code != http.StatusOK || !bytes.Equal(body, o.content) {
		t.Errorf("two ranges at once: %d, %d B", code, len(body))
	}
}
