package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestMaintenanceOfANodeIsAnnouncedAndCancelled(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 2)
	from := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	ask := func(at time.Time, lasts string) *http.Response {
		return send(t, s, request{method: "POST", path: "/v1/nodes/n1/maintenance", body: fmt.Sprintf(`{"from": %q, "for": %q, "reason": "new firmware"}`, at.Format(time.RFC3339), lasts)})
	}
	answer[api.Node](t, ask(from.Add(time.Hour), "2h"))
	n := answer[api.Node](t, ask(from, "30m"))
	if n.Control == nil || len(n.Control.Windows) != 2 || n.Control.Drained {
		t.Fatalf("got %+v; want two windows and no drain yet", n.Control)
	}
	if first := n.Control.Windows[0]; !first.From.Equal(from) || !first.To.Equal(from.Add(30*time.Minute)) || first.By == "" || first.ID == "" {
		t.Errorf("the first window is %+v", first)
	}
	for _, w := range n.Control.Windows {
		n = answer[api.Node](t, send(t, s, request{method: "DELETE", path: "/v1/nodes/n1/maintenance/" + w.ID}))
	}
	if n.Control != nil {
		t.Errorf("after both were cancelled: %+v", n.Control)
	}
	for lasts, want := range map[string]string{"0": "give how long", "91d": "give how long"} {
		if err := fmt.Sprint(problemOf(t, ask(from, lasts))); !strings.Contains(err, want) {
			t.Errorf("%s: got %q, want %q", lasts, err, want)
		}
	}
	if err := fmt.Sprint(problemOf(t, ask(from.Add(-3*time.Hour), "1h"))); !strings.Contains(err, "ended at") {
		t.Errorf("a window that is over: got %q", err)
	}
}
