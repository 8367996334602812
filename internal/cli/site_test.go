package cli_test

import (
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// script runs commands and writes down what they print.
func (f *fake) script(commands ...string) string {
	f.t.Helper()
	var b strings.Builder
	for _, args := range commands {
		r := f.shell().run(f.t, strings.Fields(args)...)
		has(f.t, r, 0)
		b.WriteString("$ nearmetal " + args + "\n" + r.out + "\n")
	}
	return b.String()
}

// drained is a drained node with members on it.
func drained(name string, members ...string) api.Node {
	return api.Node{
		Name: name, Offer: api.Offer{Confirmed: true}, Agent: &api.AgentPart{Version: "test", FirstSeenAt: t0},
		Phase: api.NodeReady, Members: members, Control: &api.NodeControl{Name: name, Drained: true, Reason: "replace a DIMM", By: "ada", Since: t0},
	}
}

func TestADrainedNodeIsShownWithReasonAndWhatItWaitsFor(t *testing.T) {
	f := newFake(t)
	f.fixed("GET /v1/nodes", api.List[api.Node]{Items: []api.Node{drained("n1", "c1/c1-0", "c1/c1-1"), drained("n2")}})
	f.fixed("GET /v1/nodes/n1", drained("n1", "c1/c1-0", "c1/c1-1", "lab.c2/c2-0"))
	golden(t, "drain", f.script("node list", "node show n1"))
}

func TestDrainWaitsForTheLastMemberAndShowsWhoseItIs(t *testing.T) {
	f := newFake(t)
	next := make(chan struct{})
	members := []string{"c1/c1-0", "c1/c1-1"}
	gone := false
	f.on("POST /v1/nodes/n1/drain", func(*http.Request, string) any { return drained("n1", members...) })
	f.on("GET /v1/nodes/n1", func(*http.Request, string) any {
		if gone {
			return drained("n1")
		}
		return drained("n1", members...)
	})
	f.mux.HandleFunc("GET /v1/watch", func(w http.ResponseWriter, r *http.Request) {
		sse(w, 1, ready("c1", 2))
		select {
		case <-next:
			gone = true
			sse(w, 2, cluster("c1", 2, api.ClusterDeleting))
		case <-r.Context().Done():
		}
		<-r.Context().Done()
	})
	sh := f.shell()
	told := false
	sh.told = func(text string) {
		if !told && strings.Contains(text, "node n1 waits for c1 (2 members)") {
			told = true
			close(next)
		}
	}
	r := sh.run(t, "node", "drain", "n1", "--reason", "replace a DIMM", "--wait")
	has(t, r, 0, "node n1 is drained, and no member is left on it\n")
	if got := f.requests()[0]; got != `POST /v1/nodes/n1/drain {"reason":"replace a DIMM"}` {
		t.Errorf("asked %s", got)
	}
	gone = false
	has(t, f.shell().run(t, "node", "drain", "n1"), 0, "node n1 is drained, members left: c1 (2 members)\n")
}

func TestCtrlCEndsTheWaitForADrainAndNotTheDrain(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/nodes/n1/drain", drained("n1", "c1/c1-0"))
	f.fixed("GET /v1/nodes/n1", drained("n1", "c1/c1-0"))
	f.stream("GET /v1/watch", []api.Cluster{ready("c1", 1)})
	sh := f.shell()
	interrupts := make(chan os.Signal, 8)
	sh.interrupts = interrupts
	sh.told = func(string) {
		select {
		case interrupts <- syscall.SIGINT:
		default:
		}
	}
	has(t, sh.run(t, "node", "drain", "n1", "--wait"), cli.ExitInterrupted, "interrupted; n1 stays drained")
}

func TestUndrainAndForgetTellWhatFailed(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/nodes/n1/undrain", drained("n1"))
	f.fixed("DELETE /v1/nodes/n1", struct{}{})
	f.fixed("DELETE /v1/nodes/n2", &api.Problem{Status: http.StatusConflict, Code: "node_in_use", Detail: `node "n2" is heard of`})
	has(t, f.shell().run(t, "node", "undrain", "n1"), 0, "node n1 may have members again\n")
	has(t, f.shell().run(t, "node", "forget", "n2", "n1"), cli.ExitConflict, "node n1 is forgotten\n", `node "n2" is heard of`)
}

func TestProjectsAreShownAndSetWithoutTouchingTheRest(t *testing.T) {
	f := newFake(t)
	lab := api.ProjectStatus{
		Project: api.Project{Name: "lab", Description: "fluid dynamics", Quota: api.Quota{Cores: 64, Memory: 1 << 38, Devices: map[string]int64{"gpu/slices": 14}}, Shares: 2, CreatedAt: t0},
		Used:    api.Quota{Cores: 8, Memory: 4 << 30, Members: 8, Clusters: 1, Devices: map[string]int64{"gpu/slices": 7, "nic/vf": 2}},
	}
	f.fixed("GET /v1/projects", api.List[api.ProjectStatus]{Items: []api.ProjectStatus{{Project: api.Project{Name: "default", Shares: 1, CreatedAt: t0}}, lab}})
	f.fixed("GET /v1/projects/lab", lab)
	f.fixed("PATCH /v1/projects/lab", lab)
	f.fixed("POST /v1/projects", lab)
	f.fixed("PATCH /v1/projects/tight", &api.Problem{
		Status: http.StatusConflict, Code: "quota_in_use", Detail: "line 1: quota.cores: 1 is less than the 2 in use",
		Errors: []api.FieldProblem{
			{Location: "quota.cores", Line: 1, Message: "1 is less than the 2 in use"},
			{Location: "quota.devices.gpu/slices", Line: 1, Message: "1 is less than the 7 in use"},
		},
	})
	f.fixed("GET /v1/projects/tight", api.ProjectStatus{Project: api.Project{Name: "tight", Shares: 1}})
	has(t, f.shell().run(t, "project", "set", "tight", "--cores", "1"), cli.ExitConflict, "--cores: 1 is less than the 2 in use", "--device gpu/slices: 1 is less than the 7 in use")
	if r := f.shell().run(t, "project", "show", "tight"); strings.Contains(r.out, "ago") {
		t.Errorf("a project that nobody made was made some time ago:\n%s", r.out)
	}
	f.fixed("GET /v1/whoami", api.Identity{
		User: "ada", Project: "lab", Role: api.RoleMember, ExpiresAt: moment(90 * 24 * time.Hour),
		Limits: api.Limits{Verbs: []api.Verb{api.VerbRead, api.VerbRun}, Clusters: []string{"ci-*", "nightly"}},
	})
	golden(t, "project", f.script("project list", "project show lab", "project show lab -o yaml", "whoami"))
	f.mu.Lock()
	f.asked = nil
	f.mu.Unlock()
	f.script("project set lab --device gpu/slices=7 --device nic/vf=0", "project set lab --cores 128 --memory 0", "project create fluids --cores 256 --memory 1TiB --shares 3 --description x")
	f.expect(`PATCH /v1/projects/lab {"quota":{"devices":{"gpu/slices":7,"nic/vf":0}}}`, `PATCH /v1/projects/lab {"quota":{"cores":128,"memory":"0"}}`,
		`POST /v1/projects {"name":"fluids","description":"x","quota":{"cores":256,"memory":"1TiB"},"shares":3}`)
}

func TestTheSecretOfATokenIsToldOnceToItsOwnerOnly(t *testing.T) {
	f := newFake(t)
	info := api.TokenInfo{ID: "abc", User: "ada", Project: "lab", Role: api.RoleMember, CreatedAt: t0, ExpiresAt: moment(90 * 24 * time.Hour)}
	refuse := false
	f.on("POST /v1/tokens", func(*http.Request, string) any {
		if refuse {
			return &api.Problem{Status: http.StatusForbidden, Code: "forbidden", Detail: "no"}
		}
		return api.NewToken{TokenInfo: info, Token: "nm1.secret.pin"}
	})
	info.Limits = api.Limits{Verbs: []api.Verb{api.VerbRead, api.VerbRun}, Clusters: []string{"ci-*"}}
	info.LastUsedAt, info.LastUsedFrom = moment(-2*time.Hour), "10.0.0.7"
	f.fixed("GET /v1/tokens", api.List[api.TokenInfo]{Items: []api.TokenInfo{info, {ID: "def", User: "old", Role: api.RoleAdmin, CreatedAt: t0, ExpiresAt: &t0}}})
	f.fixed("DELETE /v1/tokens/abc", struct{}{})
	create := []string{"token", "create", "--user", "ada", "--project", "lab", "--role", "member", "--valid-for", "90d"}
	if r := f.shell().run(t, create...); r.code != 0 || r.out != "nm1.secret.pin\n" {
		t.Errorf("exit code %d: %q %s", r.code, r.out, r.err)
	}
	limited := f.shell().run(t, append(create, "--verb", "run,change", "--cluster", "ci-*", "--cluster", "nightly")...)
	if limited.code != 0 {
		t.Errorf("exit code %d: %s", limited.code, limited.err)
	}
	f.expect(`POST /v1/tokens {"user":"ada","project":"lab","role":"member","valid_for":"90d"}`,
		`POST /v1/tokens {"user":"ada","project":"lab","role":"member","valid_for":"90d","verbs":["run","change"],"clusters":["ci-*","nightly"]}`)
	file := filepath.Join(t.TempDir(), "ada.token")
	r := f.shell().run(t, append(create, "--out", file, "-o", "json")...)
	if has(t, r, 0, `"id": "abc"`); strings.Contains(r.out+r.err, "secret") {
		t.Errorf("the secret is told beside the file:\n%s%s", r.out, r.err)
	}
	text, err := os.ReadFile(file)
	if err != nil || string(text) != "nm1.secret.pin\n" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v; want 0600", info.Mode(), err)
	}
	refuse = true
	none := filepath.Join(t.TempDir(), "none.token")
	has(t, f.shell().run(t, append(create, "--out", none)...), cli.ExitUnauthorized)
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused token leaves a file behind: %v", err)
	}
	golden(t, "token", f.script("token list", "token revoke abc"))
}

func TestASecretThatCanNotBeKeptIsRevoked(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "token")
	f.on("POST /v1/tokens", func(*http.Request, string) any {
		return api.NewToken{TokenInfo: api.TokenInfo{ID: "abc"}, Token: strings.Repeat("x", 8<<20)}
	})
	f.fixed("DELETE /v1/tokens/abc", struct{}{})
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	// It bounds the whole process, whose test log, which is short, is written meanwhile.
	bounded := syscall.Rlimit{Cur: 4 << 20, Max: limit.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &bounded); err != nil {
		t.Fatal(err)
	}
	r := f.shell().run(t, "token", "create", "--user", "a", "--role", "admin", "--out", file)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	has(t, r, cli.ExitFailed, "the secret could not be kept", "the token was revoked")
	if got := f.requests(); len(got) != 2 || got[1] != "DELETE /v1/tokens/abc" {
		t.Errorf("asked %q", got)
	}
}

func TestUsageIsShownInHoursAndTheSitesAddsUp(t *testing.T) {
	f := newFake(t)
	hours := func(h float64) api.Amount {
		return api.Amount{NodeSeconds: h * 900, MemberSeconds: h * 3600, CoreSeconds: h * 3600, MemoryByteSeconds: h * 3600 * (1 << 30)}
	}
	end := t0.Add(24 * time.Hour)
	gpus := hours(0.5)
	gpus.DeviceSeconds = map[string]float64{"nic/vf": 1800, "gpu/slices": 7 * 3600}
	gpus.StorageByteSeconds = 2 * 3600 * (1 << 30)
	report := api.UsageReport{
		Rows: []api.UsageRow{
			{From: t0, To: end, Project: "default", User: "ada", Amount: hours(12)},
			{From: t0, To: end, Project: "lab", User: "bob", Amount: gpus},
		},
		Site: []api.SiteUsage{
			{From: t0, To: end, Capacity: hours(96), Allocated: gpus.Plus(hours(12)), Cleaning: hours(0.01), Idle: hours(73.49), Down: hours(10)},
			{From: t0, To: end, Capacity: hours(96), Allocated: hours(12.5), Idle: hours(73.49), Down: hours(10)},
		},
	}
	f.on("GET /v1/usage", func(r *http.Request, _ string) any {
		if r.URL.Query().Get("format") == "csv" {
			return "from,to\r\n"
		}
		return report
	})
	texts := f.script("usage --by user", "usage --by project --period day", "usage -o json", "usage -o csv")
	report.Rows = report.Rows[:1] // without devices and volumes
	golden(t, "usage", texts+f.script("usage"))
	f.mu.Lock()
	f.asked = nil
	f.mu.Unlock()
	f.script("usage --from 7d --to 2026-01-02 --period hour --by cluster", "usage --from 2026-01-01T00:00:00+01:00")
	f.expect("GET /v1/usage?by=cluster&format=json&from=2025-12-26T03%3A05%3A35Z&period=hour&to=2026-01-02T00%3A00%3A00Z",
		"GET /v1/usage?by=project&format=json&from=2025-12-31T23%3A00%3A00Z")
}

func TestTheOutputOfARequeuedJobIsShownAttemptAfterAttempt(t *testing.T) {
	f := newFake(t)
	job := api.Job{ID: "j1", Cluster: "c1", JobRequest: api.JobRequest{Command: []string{"x"}, Requeue: true}, Phase: api.JobRunning, CreatedAt: t0}
	f.on("POST /v1/clusters/c1/jobs", func(*http.Request, string) any { return job })
	f.on("GET /v1/jobs/j1/log", func(r *http.Request, _ string) any {
		code := 0
		switch r.URL.Query().Get("attempt") {
		case "0":
			job.Attempt, job.Failures = 1, 1
			return "first\n"
		case "1":
			job.Phase, job.ExitCode = api.JobSucceeded, &code
			return "second\n"
		default:
			return "latest\n"
		}
	})
	f.on("GET /v1/jobs/j1", func(*http.Request, string) any { return job })
	f.on("GET /v1/jobs", func(*http.Request, string) any { return api.List[api.Job]{Items: []api.Job{job}} })
	r := f.shell().run(t, "run", "c1", "--requeue", "--failure-signal", "USR1", "x")
	if has(t, r, 0, "job j1 runs again from its start: attempt 2"); r.out != "first\nsecond\n" {
		t.Errorf("output is %q", r.out)
	}
	if got := f.requests()[0]; got != `POST /v1/clusters/c1/jobs {"command":["x"],"requeue":true,"failure_signal":"USR1"}` {
		t.Errorf("asked %s", got)
	}
	if got := f.requests()[3]; got != "GET /v1/jobs/j1/log?attempt=1&offset=0&follow=true" {
		t.Errorf("the second attempt's output is asked for by %s", got)
	}
	has(t, f.shell().run(t, "job", "logs", "j1", "--attempt", "3"), cli.ExitUsage, "has had 2 attempts so far, no attempt 3")
	golden(t, "attempts", f.script("job list", "job show j1", "job logs j1 --attempt 1", "job logs j1"))
}

func TestMembersProjectsAndTokensAreCompleted(t *testing.T) {
	f := newFake(t)
	c1, c2 := ready("c1", 2), ready("c2", 1)
	c2.Project = "lab"
	who := api.Identity{User: "root", Project: "default", Role: api.RoleAdmin}
	f.fixed("GET /v1/clusters", api.List[api.Cluster]{Items: []api.Cluster{c1, c2}})
	f.fixed("GET /v1/clusters/c1", c1)
	f.on("GET /v1/whoami", func(*http.Request, string) any { return who })
	f.fixed("GET /v1/projects", api.List[api.ProjectStatus]{Items: []api.ProjectStatus{{Project: api.Project{Name: "lab"}}}})
	f.fixed("GET /v1/tokens", api.List[api.TokenInfo]{Items: []api.TokenInfo{{ID: "abc", User: "ada"}}})
	f.fixed("GET /v1/nodes", api.List[api.Node]{Items: []api.Node{{Name: "n1"}, machineNode("n2", api.MachineOff)}})
	f.fixed("GET /v1/enroll-tokens", api.List[api.EnrollmentToken]{Items: []api.EnrollmentToken{{ID: "abc", Prefix: "rack1-"}}})
	complete := func(args ...string) []string {
		r := f.shell().run(t, append([]string{"__complete"}, args...)...)
		lines := strings.Split(r.out, "\n")
		return lines[:len(lines)-2]
	}
	for args, want := range map[string]string{
		"cluster ssh ":               "c1|lab.c2",
		"cluster ssh c1 ":            "c1-0|c1-1",
		"cluster scale c1 --remove ": "c1-0|c1-1",
		"project show ":              "lab",
		"token revoke ":              "abc\t ada",
		"token create --role ":       "admin|member|viewer",
		"token create --verb ":       "read|run|change|administer",
		"usage -o ":                  "table|json|yaml|csv",
		"node drain ":                "n1|n2",
		"node power on ":             "n2",
		"node set n2 --firmware ":    "bios|uefi",
		"node enroll-token delete ":  "abc\track1-",
	} {
		words := strings.Fields(args)
		if strings.HasSuffix(args, " ") {
			words = append(words, "")
		}
		if got := strings.Join(complete(words...), "|"); got != want {
			t.Errorf("%s: completed by %q, want %q", args, got, want)
		}
	}
	who.Project = "lab"
	if got := strings.Join(complete("cluster", "show", ""), "|"); got != "c1|c2" {
		t.Errorf("for a user of the other project: %s", got)
	}
}

func TestNetworksAreShownWithTheirPorts(t *testing.T) {
	f := newFake(t)
	network := func(uid, name, project string, index int, ports ...api.NetworkPort) api.NetworkStatus {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(16 * index), 0}), 20)
		return api.NetworkStatus{Network: api.Network{
			UID: uid, Name: name, Project: project, Cluster: "c1", ClusterUID: "aaaaaaaaaaaa", Technology: api.TechnologyVXLAN, Index: index, Prefix: prefix,
			Gateway: prefix.Addr().Next(), Egress: index == 1,
		}, Phase: api.NetworkReady, Ports: append([]api.NetworkPort{}, ports...)}
	}
	port := func(member, node, address string) api.NetworkPort {
		return api.NetworkPort{Cluster: "c1", Member: member, Node: node, Kind: api.PortVeth, Address: netip.MustParseAddr(address), MAC: "02:6e:00:02:00:02"}
	}
	releasing, quarantined := port("c1-1", "n2", "10.64.32.3"), port("c1-2", "n2", "10.64.32.4")
	releasing.Releasing, quarantined.Quarantined = true, true
	storage := network("aaaaaaaaaaaa.storage", "c1:storage", "lab", 2, port("c1-0", "n1", "10.64.32.2"), releasing, quarantined)
	empty := network("bbbbbbbbbbbb", "c1", "default", 1)
	f.fixed("GET /v1/networks", api.List[api.NetworkStatus]{Items: []api.NetworkStatus{empty, storage}})
	f.fixed("GET /v1/networks/{name}", storage)
	f.fixed("GET /v1/networks/c1", empty)
	f.fixed("GET /v1/whoami", api.Identity{User: "ada", Role: api.RoleAdmin})
	golden(t, "network", f.script("network list", "network list -o json", "network show lab.c1:storage", "network show lab.c1:storage -o yaml", "network show c1"))
	has(t, f.shell().run(t, "__complete", "network", "show", ""), 0, "c1\nlab.c1:storage\n:4\n")
}

func TestANetworkIsCreatedAndDeletedByItsName(t *testing.T) {
	f := newFake(t)
	made := api.NetworkStatus{Network: api.Network{UID: "nnnnnnnnnnnn", Name: "project/lab", Project: "default"}, Phase: api.NetworkPending}
	deleting := made
	deleting.Phase = api.NetworkDeleting
	f.fixed("POST /v1/networks", made)
	f.fixed("DELETE /v1/networks/{name}", deleting)
	has(t, f.shell().run(t, "network", "create", "lab", "--no-wait"), 0, "project/lab", "pending")
	has(t, f.shell().run(t, "network", "delete", "project/lab", "--no-wait"), 0, "network project/lab is being deleted")
	has(t, f.shell().run(t, "network", "create", "Lab"), cli.ExitUsage, `"Lab"`)
	has(t, f.shell().run(t, "network", "create", "lab", "--prefix", ""), cli.ExitUsage, "--prefix is empty")
	has(t, f.shell().run(t, "network", "delete"), cli.ExitUsage, "name the networks to delete")
}

// whileTokenEnds runs whoami on a terminal, or not, with a token that ends at a time, and returns what stands on standard error.
func whileTokenEnds(t *testing.T, ends time.Time, onTerminal bool) string {
	t.Helper()
	f := newFake(t)
	f.mux.HandleFunc("GET /v1/whoami", func(w http.ResponseWriter, _ *http.Request) {
		if !ends.IsZero() {
			w.Header().Set(api.TokenEndsHeader, ends.Format(time.RFC3339))
		}
		writeJSON(w, http.StatusOK, api.Identity{User: "ada"})
	})
	sh := f.shell()
	if !onTerminal {
		r := sh.run(t, "whoami")
		has(t, r, 0, "ada")
		return r.err
	}
	screen, tty := terminal(t)
	sh.errs = tty
	has(t, sh.run(t, "whoami"), 0, "ada")
	if _, err := tty.WriteString("END"); err != nil {
		t.Fatal(err)
	}
	shown := ""
	for !strings.HasSuffix(shown, "END") {
		part := make([]byte, 1<<10)
		n, err := screen.Read(part)
		if err != nil {
			t.Fatal(err)
		}
		shown += string(part[:n])
	}
	return strings.TrimSuffix(shown, "END")
}

func TestTheEndOfATokenIsAnnouncedOnATerminalAWeekBefore(t *testing.T) {
	const warning = "Warning: your token ends in 7d, on 2026-01-09 03:05:35; ask an administrator for another (nearmetal token create)\r\n"
	ran := t0.Add(90 * time.Second)
	for _, tt := range []struct {
		name       string
		ends       time.Time
		onTerminal bool
		want       string
	}{
		{"a week before", ran.AddDate(0, 0, 7), true, warning},
		{"a week before, in a script", ran.AddDate(0, 0, 7), false, ""},
		{"more than a week before", ran.AddDate(0, 0, 7).Add(time.Second), true, ""},
		{"a token without an end", time.Time{}, true, ""},
	} {
		if got := whileTokenEnds(t, tt.ends, tt.onTerminal); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
