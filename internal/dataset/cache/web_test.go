package cache

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/data/webcache"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// web serves a file at the far end to who has the token, and counts the requests.
func (w *world) web(content []byte, token string) (url string, requests *atomic.Int64) {
	w.t.Helper()
	needs.Program(w.t, webcache.Program)
	var listener net.Listener
	if err := w.far.Do(func() (err error) { listener, err = net.Listen("tcp4", farAddress+":8080"); return err }); err != nil {
		w.t.Fatal(err)
	}
	requests = &atomic.Int64{}
	server := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(out, "not for everybody", http.StatusUnauthorized)
			return
		}
		http.ServeContent(out, r, "", time.Unix(1, 0), bytes.NewReader(content))
	})}
	go func() { _ = server.Serve(listener) }()
	w.t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String() + "/data/run1.root", requests
}

// get reads a URL in a member, through the cache of a dataset.
func (w *world) get(s *Store, uid, path string) (string, int, error) {
	w.t.Helper()
	member, err := netns.New()
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = member.Close() }()
	var listener net.Listener
	if err := member.Do(func() error {
		if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
			return err
		}
		listener, err = net.Listen("tcp4", "127.0.0.1:10940")
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = s.Serve(w.t.Context(), uid, conn) }()
		}
	}()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = member.Do(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp4", address); return err })
		return conn, err
	}}}
	answer, err := client.Get("http://127.0.0.1:10940" + path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return fmt.Sprintf("%x", sha256.Sum256(body)), answer.StatusCode, err
}

func TestAPrivateDatasetAtAWebServerIsCachedWithItsCredential(t *testing.T) {
	w := newWorld(t)
	content := make([]byte, 5<<20+1000)
	_, _ = rand.Read(content)
	sum := fmt.Sprintf("%x", sha256.Sum256(content))
	url, requests := w.web(content, "t0ken")
	file := api.DatasetFile{Path: "2016/run1.root", URLs: []string{url}, SizeBytes: int64(len(content)), SHA256: sum}
	wrong := file
	wrong.SHA256 = strings.Repeat("0", 64)
	credential := &api.DatasetCredential{Token: "t0ken"}
	s, stop := w.store(nil)
	s.Want([]dataset.CacheOrder{
		{UID: "d1", Name: "events", Files: []api.DatasetFile{file}, Credential: credential},
		{UID: "d2", Name: "wrong", Files: []api.DatasetFile{wrong}, Credential: credential, Preload: true},
		{UID: "d3", Name: "denied", Files: []api.DatasetFile{file}},
	})
	w.ready(s, "d1")
	for range 2 {
		if got, code, err := w.get(s, "d1", "/2016/run1.root"); got != sum || code != http.StatusOK || err != nil {
			t.Fatalf("reading: %d, %v", code, err)
		}
	}
	var c dataset.CacheState
	w.until("both reads are counted", 20*time.Second, func() bool { c = w.state(s, "d1"); return c.HitBytes+c.MissBytes >= 2*int64(len(content)) })
	if c.MissBytes != int64(len(content)) || c.HitBytes != c.MissBytes || c.AgainBytes != 0 || c.HeldBytes < c.MissBytes {
		t.Errorf("two reads of %d B: %+v", len(content), c)
	}
	if _, code, err := w.get(s, "d1", "/other"); code != http.StatusNotFound || err != nil {
		t.Errorf("a file that is not of the dataset: %d, %v", code, err)
	}
	if _, code, err := w.get(s, "d3", "/2016/run1.root"); code != http.StatusUnauthorized || err != nil {
		t.Errorf("a dataset without a credential at the same source: %d, %v", code, err)
	}
	w.until("what is preloaded is verified", time.Minute, func() bool { _, why := s.Ready("d2", true); return strings.Contains(why, "SHA-256 is "+sum) })
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{file}, Credential: credential}}) // the wrong one is not started again
	w.until("no credential is on the disk", 20*time.Second, func() bool {
		found, _ := exec.Command("grep", "-rl", "t0ken", s.cfg.Dir).Output()
		return len(found) == 0
	})
	stop()
	before := requests.Load()
	s, _ = w.store(nil)
	s.Want([]dataset.CacheOrder{{UID: "d1", Name: "events", Files: []api.DatasetFile{file}, Credential: credential, Preload: true}})
	w.until("it is preloaded from what the next agent found", time.Minute, func() bool { ok, _ := s.Ready("d1", true); return ok })
	if requests.Load() != before {
		t.Errorf("%d blocks were fetched again after a restart", requests.Load()-before)
	}
}

func TestACacheOfWebServersDoesNotReadFromItsOwnNode(t *testing.T) {
	w := newWorld(t)
	var listener net.Listener
	if err := w.near.Do(func() (err error) { listener, err = net.Listen("tcp4", "127.0.0.1:8081"); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	reached := make(chan struct{}, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			reached <- struct{}{}
			_ = conn.Close()
		}
	}()
	needs.Program(t, webcache.Program)
	inside := dataset.CacheOrder{UID: "d1", Name: "inside", Files: []api.DatasetFile{{Path: "a", URLs: []string{"http://127.0.0.1:8081/a"}}}}
	s, stop := w.store(nil)
	s.Want([]dataset.CacheOrder{inside})
	w.ready(s, "d1")
	if _, code, err := w.get(s, "d1", "/a"); code != http.StatusBadGateway || err != nil {
		t.Errorf("reading from the node itself: %d, %v", code, err)
	}
	select {
	case <-reached:
		t.Error("a cache connects to its own node")
	default:
	}
	stop()
	s, _ = w.store(func(c *Config) {
		c.Allow = func(a netip.Addr) error { return fmt.Errorf("%s is the node itself", a) }
	})
	s.Want([]dataset.CacheOrder{inside})
	w.until("an origin on the node is refused", 20*time.Second, func() bool { return strings.Contains(w.state(s, "d1").Message, "is the node itself") })
}
