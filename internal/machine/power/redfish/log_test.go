package redfish_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/power/redfish"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

func logEntry(id int, created, severity, message string) values {
	return values{"@odata.id": fmt.Sprintf("/redfish/v1/Log/Entries/%d", id), "Id": fmt.Sprint(id), "Created": created, "Severity": severity, "Message": message}
}

func texts(l sensors.Log) (out []string) {
	for _, e := range l.Entries {
		out = append(out, string(e.Severity)+" "+e.Text)
	}
	return out
}

func TestEachEntryOfALogIsReadOnceInWhateverOrderItIs(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	s.managers = []any{at("/redfish/v1/Managers/bmc")}
	noise, sel := values{"Id": "Audit", "Entries": at("/redfish/v1/Audit")}, values{"Id": "Sel", "LogEntryType": "SEL", "Entries": at("/redfish/v1/Log/Entries")}
	s.resources = map[string]values{
		"/redfish/v1/Managers/bmc":             {"LogServices": at("/redfish/v1/Managers/bmc/LogServices")},
		"/redfish/v1/Managers/bmc/LogServices": {"Members": []any{at("/redfish/v1/Audit0"), at("/redfish/v1/Log")}},
		"/redfish/v1/Audit0":                   noise, "/redfish/v1/Log": sel,
		"/redfish/v1/Log/Entries": {"Members": []any{logEntry(1, "2026-11-28T10:00:00Z", "Critical", "old")}},
	}
	set := func(entries ...any) { // the newest first
		s.mu.Lock()
		defer s.mu.Unlock()
		s.resources["/redfish/v1/Log/Entries"] = values{"Members": entries}
	}
	read := func(after api.BMCLogMark) sensors.Log {
		t.Helper()
		sw, err := redfish.New(strict(s)) // another each time, as after a restart
		if err != nil {
			t.Fatal(err)
		}
		l, err := sw.Log(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	begin := read(api.BMCLogMark{})
	if len(begin.Entries) > 0 || begin.Mark.Log != "/redfish/v1/Log/Entries" || !slices.Equal(begin.Mark.IDs, []string{"1"}) {
		t.Fatalf("a log that was never read: got %+v; want no entries, and its end", begin)
	}
	one, two := logEntry(1, "2026-11-28T10:00:00Z", "Critical", "old"), logEntry(2, "2026-11-28T10:00:00Z", "Warning", "in the same second")
	three := logEntry(3, "2026-11-28T12:00:00+01:00", "OK", "a note")
	set(three, two, one)
	first := read(begin.Mark)
	if got, want := texts(first), []string{"warning in the same second", "ok a note"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := read(first.Mark); len(again.Entries) > 0 {
		t.Errorf("read again: %q", texts(again))
	}
	set(logEntry(1, "2026-11-28T13:00:00Z", "Critical", "after the log was cleared"))
	if got := texts(read(first.Mark)); !slices.Equal(got, []string{"critical after the log was cleared"}) {
		t.Errorf("after the log was cleared: got %q", got)
	}
	if len(s.sessions) > 0 {
		t.Errorf("%d sessions were left open", len(s.sessions))
	}
}

func TestSushyToolsHaveNoLog(t *testing.T) {
	t.Parallel()
	machines := powertest.StartMachines(t, "m1")
	s, err := redfish.New(power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerRedfish, Address: machines.Redfish, System: machines.Systems["m1"]},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := s.Log(t.Context(), api.BMCLogMark{}); !errors.Is(err, power.ErrCannot) {
		t.Errorf("got %+v, %v; want an error that is ErrCannot", l, err)
	}
}
