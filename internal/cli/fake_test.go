package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// fake answers requests as the test says, over the socket of a state directory, and remembers what it was asked.
type fake struct {
	t   *testing.T
	dir string
	mux *http.ServeMux

	mu    sync.Mutex
	asked []string
	// answered is closed and replaced at every answer: what was asked for may be another by then.
	answered chan struct{}
}

// newFake starts a server that knows nothing yet.
func newFake(t *testing.T) *fake {
	t.Helper()
	dir, err := os.MkdirTemp("", "nmcli") // short: a socket's path has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := &fake{t: t, dir: dir, mux: http.NewServeMux(), answered: make(chan struct{})}
	l, err := net.Listen("unix", filepath.Join(dir, "server.sock"))
	if err != nil {
		t.Fatal(err)
	}
	f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, http.StatusNotFound, "not_found", "nothing is at "+r.URL.Path)
	})
	f.mux.HandleFunc("GET /v1/changes", f.changes)
	server := &http.Server{Handler: f.mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return f
}

func (f *fake) shell() shell { return shell{env: map[string]string{"NEARMETAL_STATE": f.dir}} }

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func writeProblem(w http.ResponseWriter, status int, code, detail string) {
	writeJSON(w, status, api.Problem{Code: code, Status: status, Detail: detail})
}

// on answers a pattern (METHOD PATH) by a function of the request's body; an *api.Problem becomes an error.
func (f *fake) on(pattern string, answer func(r *http.Request, body string) any) {
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
		f.mu.Unlock()
		defer f.tell()
		switch v := answer(r, string(body)).(type) {
		case *api.Problem:
			writeJSON(w, v.Status, v)
		case string:
			_, _ = io.WriteString(w, v)
		default:
			writeJSON(w, http.StatusOK, v)
		}
	})
}

func (f *fake) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.answered)
	f.answered = make(chan struct{})
}

// changes is a watch that reports a change after every answer.
func (f *fake) changes(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "id: 1\nevent: sync\ndata: {}\n\n")
	for {
		f.mu.Lock()
		answered := f.answered
		f.mu.Unlock()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-answered:
			fmt.Fprintf(w, "id: 1\nevent: put\ndata: {\"kind\":%q}\n\n", r.URL.Query().Get("kind"))
		case <-r.Context().Done():
			return
		}
	}
}

// fixed always answers the same.
func (f *fake) fixed(pattern string, v any) {
	f.on(pattern, func(*http.Request, string) any { return v })
}

// holds answers a pattern with nothing, for as long as the client waits; the channel says that it does.
func (f *fake) holds(pattern string) <-chan struct{} {
	begun := make(chan struct{}, 1)
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case begun <- struct{}{}:
		default:
		}
		<-r.Context().Done()
	})
	return begun
}

// watches tells the states of a cluster one after another, then holds the stream open.
func (f *fake) watches(name string, states ...api.Cluster) {
	f.stream("GET /v1/clusters/"+name+"/watch", states)
}

// watchesAll is a watch of all clusters: the first states, synced, and the others as next lets them.
func (f *fake) stream(pattern string, states []api.Cluster) {
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i, c := range states {
			text, _ := json.Marshal(c)
			fmt.Fprintf(w, "id: %d\nevent: cluster\ndata: %s\n\n", i+1, text)
			if i == 0 {
				fmt.Fprintf(w, "id: 1\nevent: sync\ndata: {}\n\n")
			}
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
}

// requests are those that were made, without watches.
func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// expect compares what was asked.
func (f *fake) expect(want ...string) {
	f.t.Helper()
	if got := f.requests(); !slices.Equal(got, want) {
		f.t.Errorf("asked for\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// member is a ready member; cluster one of them all.
func member(group string, n int, phase api.MemberPhase) api.MemberStatus {
	return api.MemberStatus{
		Name: fmt.Sprintf("%s-%d", group, n), Group: group, Rank: n, Node: "n1", Address: fmt.Sprintf("10.64.16.%d", 10+n),
		Phase: phase, CPUs: []int{n}, MemoryBytes: 512 << 20,
	}
}

func cluster(name string, size int, phase api.ClusterPhase, members ...api.MemberStatus) api.Cluster {
	cl := api.Cluster{
		Name: name, UID: "uid-" + name, Project: "default", User: "ada",
		Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 512 << 20}, Stack: api.StackContainer, Environment: "local",
		}}},
		Status: api.ClusterStatus{Phase: phase, TotalMembers: size, CIDR: "10.64.16.0/20", CreatedAt: t0, Members: members},
	}
	for _, m := range members {
		if m.Phase == api.MemberReady {
			cl.Status.ReadyMembers++
		}
	}
	return cl
}

// ready is a cluster of so many ready members.
func ready(name string, size int) api.Cluster {
	var members []api.MemberStatus
	for i := range size {
		members = append(members, member(name, i, api.MemberReady))
	}
	return cluster(name, size, api.ClusterReady, members...)
}

// after changes a copy.
func after(c api.Cluster, change func(*api.Cluster)) api.Cluster {
	c.Status.Members = slices.Clone(c.Status.Members)
	change(&c)
	return c
}

func moment(d time.Duration) *time.Time {
	t := t0.Add(d)
	return &t
}

// sse sends a state of a cluster on a watch.
func sse(w http.ResponseWriter, id int, c api.Cluster) {
	text, _ := json.Marshal(c)
	fmt.Fprintf(w, "id: %d\nevent: cluster\ndata: %s\n\n", id, text)
	_ = http.NewResponseController(w).Flush()
}
