package apiserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// create creates a cluster by the API.
func create(t *testing.T, c *client.Client, name string) api.Cluster {
	t.Helper()
	cl, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Size: 2})
	if err != nil {
		t.Fatal(err)
	}
	return cl
}

func TestAClusterLivesItsLifeOverBothListeners(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	for what, c := range map[string]*client.Client{"tcp": s.Client(), "unix": s.LocalClient()} {
		if cl := create(t, c, what); cl.Status.Phase != api.ClusterPending || cl.UID == "" {
			t.Errorf("%s: created %+v", what, cl)
		}
		s.Place(what)
		s.MakeReady(what)
		cl, err := c.Cluster(t.Context(), what)
		if err != nil || cl.Status.Phase != api.ClusterReady || cl.Status.ReadyMembers != 2 || cl.Status.Members[0].Address == "" {
			t.Errorf("%s: %+v, %v", what, cl, err)
		}
		if cl, err = c.DeleteCluster(t.Context(), what); err != nil || cl.Status.Phase != api.ClusterDeleting {
			t.Errorf("%s: delete: %+v, %v", what, cl.Status, err)
		}
		if _, err := c.DeleteCluster(t.Context(), what); err != nil {
			t.Errorf("%s: delete again: %v", what, err)
		}
		_, err = c.CreateCluster(t.Context(), api.ClusterRequest{Name: what})
		if !client.HasCode(err, "cluster_exists") || !strings.Contains(err.Error(), "still being deleted") {
			t.Errorf("%s: create while deleting: %v", what, err)
		}
		s.Release(what)
		s.Forget(what)
		if _, err := c.Cluster(t.Context(), what); !client.HasCode(err, "cluster_not_found") {
			t.Errorf("%s: after the end: %v", what, err)
		}
	}
}

func TestOfTwoCreatesAtOnceOneWins(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	c := s.Client()
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := c.CreateCluster(context.Background(), api.ClusterRequest{Name: "c1"})
			results <- err
		}()
	}
	won := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			won++
		case !client.HasCode(err, "cluster_exists"):
			t.Errorf("loser: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d creates won, want 1", won)
	}
}

func TestAWatchTellsEveryPhaseUntilTheClusterIsGone(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.Client()
	create(t, c, "c1")
	create(t, c, "other")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var told []string
	for change, err := range c.WatchCluster(ctx, "c1") {
		if err != nil {
			t.Fatal(err)
		}
		if change.Synced {
			continue
		}
		st := change.Cluster.Status
		line := fmt.Sprintf("%s %s %d/%d", change.Cluster.Name, st.Phase, st.ReadyMembers, st.TotalMembers)
		if change.Deleted {
			line = change.Cluster.Name + " gone"
		}
		if slices.Contains(told, line) {
			continue // a commit that changes nothing that is told, as that of a cluster which holds nothing any more
		}
		told = append(told, line)
		// Every step waits for the one before to be told, so that none is folded into the next.
		switch line {
		case "c1 pending 0/2":
			s.Place("c1")
		case "c1 starting 0/2":
			for a := range s.Cache.Cluster("c1").Held() {
				s.Live.SetMember(a.Node, a.ID, api.MemberReady, "")
				break
			}
		case "c1 starting 1/2":
			s.MakeReady("c1")
		case "c1 ready 2/2":
			if _, err := c.DeleteCluster(ctx, "c1"); err != nil {
				t.Fatal(err)
			}
		case "c1 deleting 2/2":
			s.Release("c1")
		case "c1 deleting 0/2":
			s.Forget("c1")
		}
	}
	got := strings.Join(told, "\n")
	for _, step := range []string{"c1 pending 0/2", "c1 starting 0/2", "c1 starting 1/2", "c1 ready 2/2", "c1 deleting 2/2", "c1 deleting 0/2", "c1 gone"} {
		if !strings.Contains(got, step) {
			t.Errorf("the watch did not tell %q, only:\n%s", step, got)
		}
	}
	if strings.Contains(got, "other") {
		t.Errorf("the watch of c1 told of another cluster:\n%s", got)
	}
}

// sse reads one server-sent event.
type sse struct{ id, name, data string }

func readSSE(t *testing.T, r *bufio.Reader) sse {
	t.Helper()
	var e sse
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream broke: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" && e.name != "":
			return e
		case strings.HasPrefix(line, "id: "):
			e.id = line[4:]
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		}
	}
}

func TestAResumedWatchTellsWhatWasMissedDeletionsToo(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.LocalClient()
	create(t, c, "stays")
	create(t, c, "goes")
	s.Place("goes")
	first := bufio.NewReader(send(t, s, request{method: "GET", path: "/v1/watch"}).Body)
	var last string
	for e := readSSE(t, first); ; e = readSSE(t, first) {
		if e.name == "cluster" && !strings.Contains(e.data, `"phase":"pending"`) {
			last = e.id
		}
		if last != "" && e.name == "cluster" {
			break
		}
	}
	s.Release("goes")
	s.Forget("goes")
	create(t, c, "comes")
	again := bufio.NewReader(send(t, s, request{method: "GET", path: "/v1/watch", header: map[string]string{"Last-Event-ID": last}}).Body)
	saw := map[string]bool{}
	for !saw["deleted goes"] || !saw["cluster comes"] {
		e := readSSE(t, again)
		var cl api.Cluster
		if e.name == "sync" {
			continue
		}
		if err := json.Unmarshal([]byte(e.data), &cl); err != nil {
			t.Fatal(err)
		}
		saw[e.name+" "+cl.Name] = true
	}
	if saw["cluster stays"] {
		t.Log("a cluster that did not change was told again; allowed at the revision resumed from")
	}
}

func TestEventsAreListedResumedAndFollowed(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.Client()
	create(t, c, "c1")
	s.Place("c1")
	s.Event("c1", "One", "first")
	events, err := c.Events(t.Context(), "c1", 1)
	if err != nil || len(events) != 1 || events[0].Reason != "One" {
		t.Fatalf("events after 1: %+v, %v", events, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var reasons []string
	for e, err := range c.FollowEvents(ctx, "c1", 0) {
		if err != nil {
			t.Fatal(err)
		}
		reasons = append(reasons, e.Reason)
		switch e.Reason {
		case "One":
			s.Event("c1", "Two", "second")
		case "Two":
			s.Release("c1")
			s.Event("c1", "Gone", "last")
			s.Forget("c1")
		}
	}
	if diff := cmp.Diff([]string{"Placed", "One", "Two", "Gone"}, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	if events, err := c.Events(t.Context(), "c1", 0); err != nil || len(events) != 4 {
		t.Errorf("events of a cluster that is gone: %d, %v; want 4", len(events), err)
	}
	var late []string
	for e, err := range c.FollowEvents(ctx, "c1", 2) {
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, e.Reason)
	}
	if diff := cmp.Diff([]string{"Two", "Gone"}, late); diff != "" {
		t.Errorf("followed after the second (-want +got):\n%s", diff)
	}
	create(t, c, "c1")
	if events, err := c.Events(t.Context(), "c1", 0); err != nil || len(events) != 0 {
		t.Errorf("events of a new cluster of the name: %+v, %v; want none", events, err)
	}
}

func TestEventsAreListedByPagesOfTheSizeThatIsAskedFor(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Enroll("n1", 1)
	c := s.LocalClient()
	former := time.Now().Add(-time.Hour)
	var batch []api.Event
	for n := range 600 {
		e := api.Event{Cluster: "c1", Reason: fmt.Sprint(n), Time: former}
		if n >= 70 {
			e.Time = time.Now().Add(time.Hour) // of the present cluster of the name
		}
		batch = append(batch, e, api.Event{Node: "n1", Reason: fmt.Sprint(n), Time: former})
	}
	create(t, c, "c1")
	rev, err := s.Repo.AppendEvents(t.Context(), batch...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cache.WaitRevision(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	reasons := func(events []api.Event, err error) []string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		all := []string{}
		for _, e := range events {
			all = append(all, e.Reason)
		}
		return all
	}
	numbers := func(from, to int) []string {
		all := []string{}
		for n := from; n < to; n++ {
			all = append(all, fmt.Sprint(n))
		}
		return all
	}
	list := func(path string) []string {
		t.Helper()
		return reasons(answer[api.List[api.Event]](t, send(t, s, request{method: "GET", path: path})).Items, nil)
	}
	for what, tt := range map[string]struct{ got, want []string }{
		"all of a cluster":             {reasons(c.Events(t.Context(), "c1", 0)), numbers(70, 600)},
		"some of a cluster":            {reasons(c.Events(t.Context(), "c1", 300)), numbers(300, 600)},
		"all of a machine":             {reasons(c.NodeEvents(t.Context(), "n1")), numbers(0, 600)},
		"a page of a cluster":          {list("/v1/clusters/c1/events?limit=3"), numbers(70, 73)},
		"a page after one":             {list("/v1/clusters/c1/events?limit=3&after=80"), numbers(80, 83)},
		"the last page":                {list("/v1/clusters/c1/events?limit=3&after=598"), numbers(598, 600)},
		"after the last":               {list("/v1/clusters/c1/events?limit=3&after=600"), numbers(0, 0)},
		"more than there are":          {list("/v1/clusters/c1/events?limit=9223372036854775807"), numbers(70, 600)},
		"no limit":                     {list("/v1/clusters/c1/events?limit=0&after=500"), numbers(500, 600)},
		"a page of a machine":          {list("/v1/nodes/n1/events?limit=2&after=7"), numbers(7, 9)},
		"all of a machine in one list": {list("/v1/nodes/n1/events"), numbers(0, 600)},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	var followed []string
	for e, err := range c.FollowEvents(t.Context(), "c1", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if followed = append(followed, e.Reason); len(followed) == 530 {
			break
		}
	}
	if diff := cmp.Diff(numbers(70, 600), followed); diff != "" {
		t.Errorf("followed (-want +got):\n%s", diff)
	}
	if p := problemOf(t, send(t, s, request{method: "GET", path: "/v1/clusters/c1/events?limit=-1"})); p.Code != "invalid_parameter" {
		t.Errorf("a limit below 0: %s, want invalid_parameter", p.Code)
	}
}

func TestEventsThatAreNoLongerKeptAreNotSkippedSilently(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	create(t, s.LocalClient(), "c1")
	batch := make([]api.Event, 1100)
	for i := range batch {
		batch[i] = api.Event{Cluster: "c1", Reason: "X", Time: time.Now()}
	}
	rev, err := s.Repo.AppendEvents(t.Context(), batch...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cache.WaitRevision(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
	p := problemOf(t, send(t, s, request{
		method: "GET", path: "/v1/clusters/c1/events?watch=true", header: map[string]string{"Last-Event-ID": "5"},
	}))
	if p.Code != "history_gone" {
		t.Errorf("got %s, want history_gone", p.Code)
	}
}

// lockedBuffer is written by one goroutine and read by another.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
	// wrote gets a token whenever something was written.
	wrote chan struct{}
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestAFollowedLogEndsWithTheJobAndLosesNothing(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.Client()
	create(t, c, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	job, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}, Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	out := &lockedBuffer{wrote: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := c.JobLog(context.Background(), job.ID, 0, true, out)
		done <- err
	}()
	s.Logs.Write(job.ID, "hello\n")
	<-out.wrote
	big := strings.Repeat("0123456789abcdef", 20<<10)
	s.Logs.Write(job.ID, big)
	s.EndJob(job.ID, api.JobSucceeded, 0, "")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "hello\n"+big; got != want {
		t.Errorf("followed %d bytes, want %d", len(got), len(want))
	}
	var part bytes.Buffer
	if n, err := c.JobLog(t.Context(), job.ID, 6, false, &part); err != nil || n != int64(len(big)) || part.String() != big {
		t.Errorf("from offset 6: %d bytes, %v", n, err)
	}
}

func TestCancellingAJobIsStoredAndHarmlessAfterItsEnd(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c := s.Client()
	create(t, c, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	job, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	if job, err = c.CancelJob(t.Context(), job.ID); err != nil || !job.CancelRequested {
		t.Errorf("cancel: %+v, %v", job, err)
	}
	done, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"y"}})
	if err != nil {
		t.Fatal(err)
	}
	s.EndJob(done.ID, api.JobSucceeded, 0, "")
	if done, err = c.CancelJob(t.Context(), done.ID); err != nil || done.CancelRequested || done.Phase != api.JobSucceeded {
		t.Errorf("cancel after the end: %+v, %v", done, err)
	}
	jobs, err := c.Jobs(t.Context(), "c1")
	if err != nil || len(jobs) != 2 || jobs[0].ID != job.ID {
		t.Errorf("jobs: %+v, %v; want the older one first", jobs, err)
	}
}

func TestTheAgentsStreamIsFullDuplexAndForAgentsOnly(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "echo %s\n", lines.Text())
			_ = rc.Flush()
		}
	})
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.AgentStream = echo })
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: s.NodeTLS("n1"), ForceAttemptHTTP2: true}}
	up, feed := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+s.Addr+"/agent/v5/stream", up)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Fatalf("stream: %v, %v", resp, err)
	}
	defer resp.Body.Close()
	down := bufio.NewReader(resp.Body)
	for _, word := range []string{"one", "two"} {
		fmt.Fprintln(feed, word)
		if line, err := down.ReadString('\n'); err != nil || line != "echo "+word+"\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	feed.Close()
}

func TestANodesStreamEndsWithItsIdentity(t *testing.T) {
	open, ended := make(chan struct{}), make(chan struct{})
	wait := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(open)
		<-r.Context().Done()
		close(ended)
	})
	// Streams are also looked at when they are kept alive, which is too late.
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.AgentStream, c.KeepAlive = wait, time.Hour })
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: s.NodeTLS("n1"), ForceAttemptHTTP2: true}}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+s.Addr+"/agent/v5/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if resp, err := hc.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-open
	if err := s.Client().RevokeNode(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("the stream goes on after its identity was revoked")
	}
	s.Stop()
	<-answered
}

func TestAServerThatStopsEndsItsStreamsAndCountsAsUnreachable(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	c := s.Client()
	create(t, c, "c1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for change, err := range c.WatchCluster(ctx, "c1") {
		if err != nil {
			t.Fatal(err)
		}
		if change.Synced {
			break
		}
	}
	resp := send(t, s, request{method: "GET", path: "/v1/watch"})
	start := time.Now()
	s.Stop()
	took := time.Since(start)
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("the stream ended by %v, want an orderly end", err)
	}
	if took > 4*time.Second { // after five they are cut off
		t.Errorf("stopping took %v: streams held it up", took)
	}
	var unreachable *client.UnreachableError
	if _, err := c.Clusters(t.Context()); !errors.As(err, &unreachable) {
		t.Errorf("after the stop: %v, want an *UnreachableError", err)
	}
}

func TestTheDocumentNamesEveryPathAndIsOpen(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	var doc struct {
		OpenAPI string                               `json:"openapi"`
		Paths   map[string]map[string]map[string]any `json:"paths"`
	}
	resp := sendTCP(t, s, "", request{method: "GET", path: "/openapi.json"})
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1") {
		t.Errorf("version %q, want 3.1", doc.OpenAPI)
	}
	for _, operation := range s.Server.Operations() {
		if strings.HasPrefix(operation.Path, "/agent/") {
			continue // between parts of the program, not for others
		}
		op := doc.Paths[operation.Path][strings.ToLower(operation.Method)]
		if op["summary"] == "" || op["summary"] == nil {
			t.Errorf("%s %s is not documented, or has no summary", operation.Method, operation.Path)
		}
		if _, hasBody := op["requestBody"]; !hasBody && (operation.Method == "PUT" || op["operationId"] == "scale-cluster") {
			t.Errorf("%s %s has no documented body", operation.Method, operation.Path)
		}
	}
}

func TestStoredStateThatIsUnreadableIsAnErrorNotAPanic(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 2)
	c := s.Client()
	create(t, c, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	job, err := c.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	s.Logs.Broken = true
	if p := problemOf(t, send(t, s, request{method: "GET", path: "/v1/jobs/" + job.ID + "/log"})); p.Code != "internal_error" {
		t.Errorf("got %s, want internal_error", p.Code)
	}
}
