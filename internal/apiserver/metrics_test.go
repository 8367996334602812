package apiserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// metricsFor reads the metrics with a token.
func metricsFor(t *testing.T, s *apiservertest.Site, line string) string {
	t.Helper()
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	resp := send(t, s, request{method: "GET", path: "/v1/metrics", header: map[string]string{"Authorization": "Bearer " + token.Bearer()}})
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("got %d, %v, %v", resp.StatusCode, resp.Header, err)
	}
	return string(text)
}

func TestMetricsHaveTheCountersOfThePortsThatTheTokenMaySee(t *testing.T) {
	s := withNetworks(t)
	own, others := desiredOf(t, s, "c1", ""), desiredOf(t, s, "lab.c1", "")
	s.Networks.SetCounters(map[string]api.PortCounters{
		own.Ports[0].ID:    {SentBytes: 11, SentPackets: 12, SentDropped: 13, ReceivedBytes: 21, ReceivedPackets: 22, ReceivedDropped: 23},
		others.Ports[0].ID: {SentBytes: 99},
	})
	const labels = `{project="default",network="c1",cluster="c1",member="a-0",node="n1",direction=`
	got := metricsFor(t, s, s.Token("ann", "default", api.RoleViewer))
	for _, want := range []string{
		"# TYPE nearmetal_port_bytes_total counter\n", "nearmetal_port_bytes_total" + labels + "\"sent\"} 11\n", "nearmetal_port_packets_total" + labels + "\"sent\"} 12\n",
		"nearmetal_port_dropped_packets_total" + labels + "\"sent\"} 13\n", "nearmetal_port_bytes_total" + labels + "\"received\"} 21\n",
		"nearmetal_port_packets_total" + labels + "\"received\"} 22\n", "nearmetal_port_dropped_packets_total" + labels + "\"received\"} 23\n", "nearmetal_ports_omitted 0\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, `project="lab"`) || strings.Contains(got, `member="b-0"`) {
		t.Errorf("the metrics have ports of other projects, or ports without counters:\n%s", got)
	}
	if got := metricsFor(t, s, s.Token("root", "", api.RoleAdmin)); !strings.Contains(got, `{project="lab",network="c1",cluster="c1",member="a-0",node="n1",direction="sent"} 99`) {
		t.Errorf("an administrator's metrics lack those of other projects:\n%s", got)
	}
}
