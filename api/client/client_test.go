package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// wire is a socket that passes on to another, and can be cut.
type wire struct {
	path string

	mu     sync.Mutex
	target string
	conns  []net.Conn
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	w := &wire{path: filepath.Join(t.TempDir(), "w"), target: target}
	l, err := net.Listen("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); w.cut(""); w.cut("") })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			w.mu.Lock()
			out, err := net.Dial("unix", w.target)
			if err != nil {
				in.Close()
			} else {
				w.conns = append(w.conns, in, out)
				go func() { _, _ = io.Copy(out, in); out.Close() }()
				go func() { _, _ = io.Copy(in, out); in.Close() }()
			}
			w.mu.Unlock()
		}
	}()
	return w
}

// cut breaks all connections; new ones go to target ("": to nobody).
func (w *wire) cut(target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.target = target
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (w *wire) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Addr: "unix:" + w.path})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c *client.Client, name string) {
	t.Helper()
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: name}); err != nil {
		t.Fatal(err)
	}
}

// remove makes a pending cluster be gone altogether.
func remove(t *testing.T, s *apiservertest.Site, c *client.Client, name string) {
	t.Helper()
	if _, err := c.DeleteCluster(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	s.Release(name)
	s.Forget(name)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAWatchSurvivesABrokenConnection(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	w := newWire(t, s.Socket())
	local := s.LocalClient()
	create(t, local, "c1")
	cut := false
	for change, err := range w.client(t).WatchCluster(bounded(t), "c1") {
		switch {
		case err != nil:
			t.Fatal(err)
		case change.Synced && !cut:
			cut = true
			w.cut(s.Socket())
			remove(t, s, local, "c1")
		case change.Deleted:
			return
		}
	}
	t.Error("the watch ended without telling that the cluster is gone")
}

func TestAWatchOfAllTellsWhatWentWhileAnotherServerTookOver(t *testing.T) {
	st := memory.New()
	first := apiservertest.New(t, st, nil)
	w := newWire(t, first.Socket())
	local := first.LocalClient()
	create(t, local, "goes")
	create(t, local, "stays")
	var gone, came []string
	synced := 0
	for change, err := range w.client(t).WatchClusters(bounded(t)) {
		switch {
		case err != nil:
			t.Fatal(err)
		case change.Synced:
			if synced++; synced == 1 {
				w.cut("")
				remove(t, first, local, "goes")
				first.Stop()
				// The new server's history begins here: the watch can't be resumed and has to begin anew.
				second := apiservertest.New(t, st, nil)
				create(t, second.LocalClient(), "comes")
				w.cut(second.Socket())
			}
		case change.Deleted:
			gone = append(gone, change.Cluster.Name)
		case synced > 0:
			came = append(came, change.Cluster.Name)
		}
		if synced == 2 && len(gone) > 0 {
			break
		}
	}
	if len(gone) != 1 || gone[0] != "goes" {
		t.Errorf("told as gone: %v, want goes", gone)
	}
	if len(came) < 2 {
		t.Errorf("told anew: %v, want comes and stays", came)
	}
}

func TestAWatchOfChangesBeginsAgainWhereItsHistoryIsGone(t *testing.T) {
	st := memory.New()
	first := apiservertest.New(t, st, nil)
	w := newWire(t, first.Socket())
	var seen []string
	synced := 0
	for change, err := range w.client(t).Changes(bounded(t), client.Selection{Kind: api.KindCluster}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case change.Synced:
			switch synced++; synced {
			case 1:
				create(t, first.LocalClient(), "c1")
			case 2:
				create(t, w.client(t), "c2")
			}
		default:
			seen = append(seen, change.Name)
		}
		switch {
		case change.Name == "c1":
			w.cut("")
			first.Stop()
			// The history of the new server begins after what the watch has seen last.
			second := apiservertest.New(t, st, nil)
			second.AddNode("n1", 1)
			w.cut(second.Socket())
		case change.Name == "c2":
			if synced != 2 {
				t.Errorf("synced %d times, want once for each beginning", synced)
			}
			return
		}
	}
	t.Errorf("the watch ended after %q", seen)
}

func TestAFollowedLogSurvivesABrokenConnectionWithoutLossOrRepetition(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 2)
	local := s.LocalClient()
	create(t, local, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	job, err := local.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, s.Socket())
	s.Logs.Write(job.ID, "one\n")
	var out bytes.Buffer
	n, err := w.client(t).JobLog(bounded(t), job.ID, 0, true, writerFunc(func(p []byte) (int, error) {
		if out.Len() == 0 {
			w.cut(s.Socket())
			s.Logs.Write(job.ID, "two\n")
			s.EndJob(job.ID, api.JobSucceeded, 0, "")
		}
		return out.Write(p)
	}))
	if err != nil || n != 8 || out.String() != "one\ntwo\n" {
		t.Errorf("copied %d bytes, %v: %q", n, err, out.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAServerThatNeverAnsweredIsNotWaitedFor(t *testing.T) {
	c, err := client.New(client.Options{Addr: "unix:" + filepath.Join(t.TempDir(), "none")})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, err := range c.WatchCluster(bounded(t), "c1") {
		var unreachable *client.UnreachableError
		if !errors.As(err, &unreachable) {
			t.Errorf("watch: %v, want an *UnreachableError", err)
		}
	}
	if d := time.Since(start); d > 10*time.Second { // half of what it is given
		t.Errorf("gave up after %v", d)
	}
}

func TestAddressesThatCanNotBeAreRefused(t *testing.T) {
	for _, addr := range []string{"", "host", "http://host:1", "unix:", "https://host", ":7700", "host:", "ftp://x:1"} {
		if _, err := client.New(client.Options{Addr: addr}); err == nil && addr != "ftp://x:1" {
			t.Errorf("address %q was accepted", addr)
		}
	}
	for addr, want := range map[string]string{"h:1": "h", "https://[::1]:7700/": "::1", "unix:/x": ""} {
		if got, err := client.Host(addr); err != nil || got != want {
			t.Errorf("host of %q is %q, %v; want %q", addr, got, err, want)
		}
	}
}

func TestWhatIsNoNearmetalServerIsSaidSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			_, _ = conn.Read(buf)
			_, _ = io.WriteString(conn, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\nConnection: close\r\n\r\noops\n")
			conn.Close()
		}
	}()
	c, err := client.New(client.Options{Addr: "unix:" + path})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Clusters(t.Context())
	var unreachable *client.UnreachableError
	if !errors.As(err, &unreachable) {
		t.Errorf("got %v, want an *UnreachableError", err)
	}
}
