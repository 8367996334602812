package cli_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func has(t *testing.T, r result, code int, says ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.err)
	}
	for _, say := range says {
		if !strings.Contains(r.out+r.err, say) {
			t.Errorf("lacks %q:\n%s%s", say, r.out, r.err)
		}
	}
}

func TestScaleWaitsUntilNewMembersAreReadyWhateverAStaleWatchSays(t *testing.T) {
	f := newFake(t)
	asked := after(ready("c1", 2), func(c *api.Cluster) { c.Spec.Groups = []api.Group{c.Spec.Groups[0]}; c.Spec.Groups[0].Size = 3 })
	f.fixed("POST /v1/clusters/c1/scale", asked)
	waits := cluster("c1", 3, api.ClusterScaling, append(ready("c1", 2).Status.Members, member("c1", 2, api.MemberStarting))...)
	f.watches("c1", ready("c1", 2), asked, waits, ready("c1", 3))
	r := f.shell().run(t, "cluster", "scale", "c1", "--size", "3")
	has(t, r, 0, "Members:  3 of 3 ready", "cluster c1: scaling, 2/3 members ready")
	f.expect(`POST /v1/clusters/c1/scale {"size":3}`)
}

func TestAScaleDownIsOverWhenNothingIsLeftOfTheOthers(t *testing.T) {
	f := newFake(t)
	asked := after(ready("c1", 1), func(c *api.Cluster) { c.Status.Members = ready("c1", 3).Status.Members })
	leaving := after(ready("c1", 1), func(c *api.Cluster) {
		c.Status.Members = append(c.Status.Members, member("c1", 1, api.MemberReleasing), member("c1", 2, api.MemberReleasing))
	})
	f.fixed("POST /v1/clusters/c1/scale", asked)
	f.watches("c1", asked, leaving, ready("c1", 1))
	r := f.shell().run(t, "cluster", "scale", "c1", "--remove", "c1-1", "c1-2")
	has(t, r, 0, "cluster c1: ready, 1/1 members ready, 2 leaving")
	f.expect(`POST /v1/clusters/c1/scale {"remove":["c1-1","c1-2"]}`)
}

func TestAScaleUpWithoutRoomIsRefused(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/clusters/c1/scale", &api.Problem{Status: http.StatusConflict, Code: "no_room", Detail: "1 core is needed, 0 are free"})
	has(t, f.shell().run(t, "cluster", "scale", "c1", "--size", "3"), cli.ExitRefused, "Error: 1 core is needed, 0 are free\n")
}

func TestAScaleUpThatQueuesTellsWhatItWaitsFor(t *testing.T) {
	f := newFake(t)
	waiting := cluster("c1", 3, api.ClusterScaling, append(ready("c1", 2).Status.Members, member("c1", 2, api.MemberWaiting))...)
	f.fixed("POST /v1/clusters/c1/scale", waiting)
	f.watches("c1", waiting)
	f.fixed("GET /v1/clusters/c1/explain", api.Explanation{Waiting: []api.Waiting{{Kind: "scale", Position: 2, Reason: "1 core is needed, 0 are free", Earliest: moment(time.Hour)}}})
	sh := f.shell()
	interrupts := make(chan os.Signal, 1)
	sh.interrupts = interrupts
	sh.told = func(text string) {
		if strings.Contains(text, "at the latest") {
			sh.told = nil
			select {
			case interrupts <- syscall.SIGINT:
			default:
			}
		}
	}
	r := sh.run(t, "cluster", "scale", "c1", "--size", "3", "--queue")
	has(t, r, cli.ExitInterrupted, "number 2 in the queue: 1 core is needed, 0 are free; starts by 04:05 at the latest", "goes on without you")
}

func TestMistakesInFlagsOfChangesSendNothing(t *testing.T) {
	f := newFake(t)
	f.on("/v1/", func(*http.Request, string) any { return api.Cluster{} })
	file := filepath.Join(t.TempDir(), "c1.yaml")
	if err := os.WriteFile(file, []byte("name: c1\nproject: lab\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, say := range map[string]string{
		"cluster scale":                                             "name the cluster",
		"cluster scale c1":                                          "--size N",
		"cluster scale c1 --size 0":                                 "at least 1 member",
		"cluster scale c1 --size 5000":                              "the limit is 4093",
		"cluster scale c1 c2 --size 2":                              `"c2" is one too many`,
		"cluster scale c1 --size 2 --remove c1-1":                   "--size conflicts with --remove",
		"cluster scale c1 --remove c1-1 --queue":                    "--queue conflicts with --remove",
		"cluster scale c1 --remove c1-1 --group g":                  "--group conflicts with --remove",
		"cluster scale c1 --remove=":                                "a name is empty",
		"cluster pause":                                             "name the clusters to pause",
		"cluster save":                                              "name the clusters to save",
		"cluster extend c1":                                         "--by 1h",
		"cluster extend c1 --by 1h --to 2h":                         "--by conflicts with --to",
		"cluster extend c1 --by 1":                                  "is not a time span",
		"cluster extend c1 --by 0s":                                 "changes nothing",
		"cluster apply":                                             "-f FILE",
		"cluster apply c2 -f " + file:                               `describes cluster "lab.c1", not "c2"`,
		"cluster apply c1 c2 -f " + file:                            "one name too many",
		"cluster label c1":                                          "name the cluster and its labels",
		"cluster label c1 team":                                     "KEY-",
		"cluster label c1 team=":                                    "write team-",
		"cluster label c1 a=1 a-":                                   "given twice",
		"cluster label c1 -- -x=1":                                  "label key",
		"cluster create c1 --time-limit soon":                       "is not a time span",
		"cluster create c1 --time-limit 1ms":                        "--time-limit",
		"cluster create c1 --spares -1":                             "--spares",
		"cluster create c1 --project Lab":                           "--project",
		"cluster create --queue -f " + file:                         "--queue can't be given together with a file",
		"cluster ssh":                                               "name the cluster",
		"cluster ssh c1 c1-0 uname":                                 "a command stands after --",
		"cluster ssh c1 --":                                         "no command after --",
		"cluster forward c1":                                        "name the ports",
		"cluster forward c1 80:x":                                   "not LOCAL:REMOTEPORT",
		"cluster forward c1 0:80":                                   "not LOCAL:REMOTEPORT",
		"cluster forward c1 8080:80 8080:81":                        "given twice",
		"cp a":                                                      "SOURCE... DESTINATION",
		"cp a b":                                                    "CLUSTER:PATH",
		"cp c1:a c2:b":                                              "copy to this machine first",
		"cp c1:a c2:b .":                                            "on different members",
		"cp c1:a ./b c1:c":                                          "both",
		"node drain":                                                "name the nodes to drain",
		"project create":                                            "name the project",
		"project create Lab":                                        "DNS label",
		"project create lab --shares 0":                             "at least 1",
		"project create lab --cores -1":                             "below zero",
		"project create lab --memory much":                          "--memory",
		"project create lab --device slices=1":                      `--device: "slices" is not a counter of devices; write CLASS/COUNTER`,
		"project create lab --device gpu/slices=x":                  `--device: "gpu/slices=x" is not NAME=NUMBER`,
		"project set lab --device gpu/slices=-1":                    "gpu/slices=-1 is below zero",
		"project set lab":                                           "say what to change",
		"token create --role admin":                                 "--user",
		"token create --user ada":                                   "--role",
		"token create --user ada --role boss":                       "is no role",
		"token create --user ada --role member":                     "--project NAME",
		"token create --user ada --role admin --out " + taken:       "exists already; no token was made",
		"token create --user ada --role admin --out /nonexistent/x": "no token was made",
		"token create --user ada --role admin --valid-for 0s":       "every token expires",
		"token create --user ada --role admin --verb write":         "use read, run, change, administer",
		"token revoke":                                              "name the tokens",
		"usage --from yesterday":                                    "is not a time",
		"usage --from 1h --to 2h":                                   "is not before",
		"usage --by node":                                           "cluster, user or project",
		"usage --period week":                                       "hour, day or month",
		"usage -o xml":                                              "json, yaml or csv",
		"job logs x --attempt 0":                                    "the first is 1",
		"run c1 --failure-signal USR3 x":                            "--failure-signal",
		"run c1 --dir here x":                                       "--dir",
		"run c1 --env 1a=b x":                                       "--env",
	} {
		r := f.shell().run(t, strings.Fields(args)...)
		if r.code != cli.ExitUsage || !strings.HasPrefix(r.err, "Error: ") || !strings.Contains(r.err, say) || r.out != "" {
			t.Errorf("%s: exit code %d, lacks %q:\n%s%s", args, r.code, say, r.out, r.err)
		}
	}
	f.expect()
}

func TestPauseAndResumeWaitForEveryCluster(t *testing.T) {
	f := newFake(t)
	paused := func(phase api.ClusterPhase, wanted bool) api.Cluster {
		return after(ready("c1", 1), func(c *api.Cluster) { c.Status.Phase, c.Status.Paused = phase, wanted })
	}
	f.fixed("POST /v1/clusters/c1/pause", paused(api.ClusterReady, true))
	// The first is older than the request: of a pause before this one.
	f.watches("c1", paused(api.ClusterPaused, false), paused(api.ClusterPausing, true), paused(api.ClusterPaused, true))
	has(t, f.shell().run(t, "cluster", "pause", "c1", "c1", "nix"), cli.ExitNotFound, "cluster c1 is paused\n", "pausing", "nothing is at /v1/clusters/nix/pause")
	f.expect("POST /v1/clusters/c1/pause")

	f = newFake(t)
	f.fixed("POST /v1/clusters/c1/resume", paused(api.ClusterPaused, false))
	f.watches("c1", paused(api.ClusterPaused, true), paused(api.ClusterResuming, false), paused(api.ClusterPaused, true))
	has(t, f.shell().run(t, "cluster", "resume", "c1"), cli.ExitConflict, "somebody else changed cluster \"c1\" back")
}

func TestSaveAndRestoreWaitAndSayWhyTheyWereGivenUp(t *testing.T) {
	saved := func(phase api.ClusterPhase, wanted bool, message string) api.Cluster {
		return after(ready("c1", 1), func(c *api.Cluster) { c.Status.Phase, c.Status.Saved, c.Status.Message = phase, wanted, message })
	}
	tests := []struct {
		name, verb string
		answer     api.Cluster
		watched    []api.Cluster
		code       int
		want       []string
	}{
		{
			"a save", "save", saved(api.ClusterReady, true, ""),
			[]api.Cluster{saved(api.ClusterSaved, false, ""), saved(api.ClusterSaving, true, ""), saved(api.ClusterSaved, true, "1 member saved")},
			0,
			[]string{"cluster c1 is saved\n"},
		},
		{
			"a save that fails", "save", saved(api.ClusterReady, true, ""),
			[]api.Cluster{saved(api.ClusterSaving, true, ""), saved(api.ClusterRestoring, false, "it could not be saved: the disk is full")},
			cli.ExitConflict,
			[]string{`cluster "c1" did not become saved: it could not be saved: the disk is full`},
		},
		{
			"a save that somebody takes back", "save", saved(api.ClusterReady, true, ""),
			[]api.Cluster{saved(api.ClusterSaving, true, ""), saved(api.ClusterRestoring, false, "restoring 1 member")},
			cli.ExitConflict,
			[]string{`somebody else changed cluster "c1" back`},
		},
		{
			"a restore that fails", "restore", saved(api.ClusterSaved, false, ""),
			[]api.Cluster{saved(api.ClusterRestoring, false, ""), saved(api.ClusterSaving, true, "it could not be restored: another QEMU")},
			cli.ExitConflict,
			[]string{`did not become ready: it could not be restored: another QEMU`},
		},
		{
			"a restore", "restore", saved(api.ClusterSaved, false, ""),
			[]api.Cluster{saved(api.ClusterRestoring, false, ""), saved(api.ClusterReady, false, "")},
			0,
			[]string{"cluster c1 is ready\n"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			f.fixed("POST /v1/clusters/c1/"+tt.verb, tt.answer)
			f.watches("c1", tt.watched...)
			has(t, f.shell().run(t, "cluster", tt.verb, "c1"), tt.code, tt.want...)
			f.expect("POST /v1/clusters/c1/" + tt.verb)
		})
	}
	f := newFake(t)
	has(t, f.shell().run(t, "cluster", "save", "c1", "--memory=false"), cli.ExitUsage, "give --files ENVIRONMENT to save the files of a whole machine; nothing was changed")
	f.expect()
}

func TestExtendSendsTheNewLimitAsAWholeSoThatTwiceIsOnce(t *testing.T) {
	f := newFake(t)
	limited := after(ready("c1", 1), func(c *api.Cluster) {
		c.Spec.TimeLimit, c.Status.ExpiresAt = api.Duration(4*time.Hour), moment(4*time.Hour)
	})
	longer := after(limited, func(c *api.Cluster) {
		c.Spec.TimeLimit, c.Status.ExpiresAt = api.Duration(5*time.Hour), moment(5*time.Hour)
	})
	f.fixed("GET /v1/clusters/c1", limited)
	f.fixed("POST /v1/clusters/c1/extend", longer)
	has(t, f.shell().run(t, "cluster", "extend", "c1", "--by", "1h"), 0, "cluster c1: time limit 5h, ends 2026-01-02 08:04:05 (in 5h)\n")
	has(t, f.shell().run(t, "cluster", "extend", "c1", "--to", "1d"), 0)
	f.expect("GET /v1/clusters/c1", `POST /v1/clusters/c1/extend {"time_limit":"5h"}`, `POST /v1/clusters/c1/extend {"time_limit":"1d"}`)

	f = newFake(t)
	f.fixed("GET /v1/clusters/c1", ready("c1", 1))
	has(t, f.shell().run(t, "cluster", "extend", "c1", "--by", "1h"), cli.ExitConflict, "has no time limit")
	f.expect("GET /v1/clusters/c1")
}

func TestApplyPrintsThePlanThenAppliesThenWaits(t *testing.T) {
	f := newFake(t)
	result := api.ApplyResult{Steps: []api.PlanStep{
		{Action: "change", Path: "groups[c1].size", From: "1", To: "2", Message: "1 member is added: c1-1"},
		{Action: "add", Path: "labels[team]", To: "fluids"},
		{Action: "remove", Path: "labels[run]", From: "7"},
		{Action: "keep", Path: "egress", From: "no", To: "no"},
	}}
	f.on("PUT /v1/clusters/c1", func(r *http.Request, _ string) any {
		answer := result
		if r.URL.Query().Get("dry_run") == "" {
			cl := ready("c1", 2)
			cl.Status.Members = cl.Status.Members[:1]
			answer.Applied, answer.Cluster = true, &cl
		}
		return answer
	})
	f.watches("c1", ready("c1", 2))
	file := filepath.Join(t.TempDir(), "c1.yaml")
	if err := os.WriteFile(file, []byte("name: c1\nsize: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := `~ groups[c1].size: 1 -> 2 (1 member is added: c1-1)
+ labels[team]: fluids
- labels[run]: 7
= egress: no
`
	dry := f.shell().run(t, "cluster", "apply", "c1", "-f", file, "--dry-run")
	if has(t, dry, 0); dry.out != plan {
		t.Errorf("the plan is\n%s, want\n%s", dry.out, plan)
	}
	if n := len(f.requests()); n != 1 || !strings.HasPrefix(f.requests()[0], "PUT /v1/clusters/c1?dry_run=true ") {
		t.Errorf("a dry run asks %q", f.requests())
	}
	real := f.shell().run(t, "cluster", "apply", "-f", file)
	if has(t, real, 0, "Members:  2 of 2 ready"); !strings.HasPrefix(real.out, plan) {
		t.Errorf("the plan does not come first:\n%s", real.out)
	}
	has(t, f.shell().run(t, "cluster", "apply", "-f", file, "-o", "json"), 0, `"applied": true`)
	result.Steps = []api.PlanStep{{Action: "keep", Message: "the cluster already matches the file"}}
	has(t, f.shell().run(t, "cluster", "apply", "-f", file), 0, "= the cluster already matches the file\n")
	if got := f.requests(); !strings.Contains(got[len(got)-1], "dry_run") {
		t.Errorf("where nothing is to be changed %q is asked", got[len(got)-1])
	}
}

func TestLabelsAreSetAndRemoved(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/clusters/c1/labels", after(ready("c1", 1), func(c *api.Cluster) { c.Labels = map[string]string{"run": "7"} }))
	has(t, f.shell().run(t, "cluster", "label", "c1", "team-", "run=7"), 0, "cluster c1: labels run=7\n")
	f.expect(`POST /v1/clusters/c1/labels {"labels":{"run":"7","team":""}}`)
}

func TestACreateThatQueuesShowsItsPlaceUntilItIsPlaced(t *testing.T) {
	f := newFake(t)
	queued := cluster("c1", 1, api.ClusterQueued)
	queued.Project, queued.Spec.Queue = "lab", true
	started := ready("c1", 1)
	started.Project = "lab"
	next := make(chan struct{})
	f.on("POST /v1/clusters", func(*http.Request, string) any { return queued })
	f.mux.HandleFunc("GET /v1/clusters/lab.c1/watch", func(w http.ResponseWriter, r *http.Request) {
		sse(w, 1, queued)
		select {
		case <-next:
			sse(w, 2, started)
		case <-r.Context().Done():
		}
		<-r.Context().Done()
	})
	f.fixed("GET /v1/clusters/lab.c1/explain", api.Explanation{Waiting: []api.Waiting{{
		Kind: "create", Position: 1, Reason: "8 cores are needed, 4 are free", Earliest: moment(26 * time.Hour),
	}}})
	sh := f.shell()
	placed := false
	sh.told = func(text string) {
		if !placed && strings.Contains(text, "number 1 in the queue: 8 cores are needed, 4 are free; starts by 2026-01-03 05:05 at the latest") {
			placed = true
			close(next)
		}
	}
	r := sh.run(t, "cluster", "create", "c1", "--queue", "--time-limit", "4h", "--priority", "-1", "--project", "lab", "--spares", "1")
	has(t, r, 0, "Phase:    ready", "cluster c1: queued, 0/1 members ready: number 1", "Project:  lab")
	var create string
	for _, asked := range f.requests() {
		if strings.HasPrefix(asked, "POST") {
			create = asked
		}
	}
	for _, want := range []string{`"queue":true`, `"time_limit":"4h"`, `"priority":-1`, `"project":"lab"`, `"spares":1`} {
		if !strings.Contains(create, want) {
			t.Errorf("the request lacks %s: %s", want, create)
		}
	}
}

func TestExplainAndTheQueueSayWhyAndHowLong(t *testing.T) {
	f := newFake(t)
	waiting := []api.Waiting{
		{Cluster: "c1", Project: "default", User: "ada", Kind: "heal", Members: 1, Cores: 1, Reason: "no node has room", Since: t0},
		{Cluster: "big", Project: "lab", Kind: "create", Members: 8, Cores: 64, Position: 1, Priority: 5, Reason: "64 cores are needed", Since: t0.Add(-time.Hour), Earliest: moment(2 * time.Hour)},
	}
	f.fixed("GET /v1/queue", api.List[api.Waiting]{Items: waiting})
	f.fixed("GET /v1/clusters/c1/explain", api.Explanation{Cluster: "c1", Phase: api.ClusterDegraded, Message: "c1-1 was lost; no node has room.", Waiting: waiting[:1]})
	var script strings.Builder
	for _, args := range []string{"queue", "queue -o yaml", "cluster explain c1", "cluster explain c1 -o json"} {
		r := f.shell().run(t, strings.Fields(args)...)
		has(t, r, 0)
		script.WriteString("$ nearmetal " + args + "\n" + r.out + "\n")
	}
	golden(t, "queue", script.String())
}

func TestListAndShowTellOfLimitsProjectsAndMembersThatAreMissing(t *testing.T) {
	f := newFake(t)
	c1 := cluster("c1", 3, api.ClusterDegraded, member("c1", 0, api.MemberReady), member("c1", 1, api.MemberLost), member("c1", 2, api.MemberWaiting), member("c1", 3, api.MemberSpare))
	c1.Spec.TimeLimit, c1.Status.ExpiresAt, c1.Status.Paused = api.Duration(4*time.Hour), moment(4*time.Hour), true
	c1.Spec.Groups[0].Spares, c1.Spec.Groups[0].Checks = 1, []api.Check{{Name: "gpu"}}
	c1.Spec.Priority = 3
	c2 := cluster("c2", 1, api.ClusterQueued)
	c2.Project, c2.Spec.TimeLimit = "lab", api.Duration(time.Hour)
	f.fixed("GET /v1/clusters", api.List[api.Cluster]{Items: []api.Cluster{c1, c2}})
	f.fixed("GET /v1/clusters/c1", c1)
	f.fixed("GET /v1/clusters/lab.c2", c2)
	var script strings.Builder
	for _, args := range []string{"cluster list", "cluster show c1", "cluster show lab.c2"} {
		r := f.shell().run(t, strings.Fields(args)...)
		has(t, r, 0)
		script.WriteString("$ nearmetal " + args + "\n" + r.out + "\n")
	}
	golden(t, "life", script.String())
}

func TestAPlaceInTheQueueIsAskedForAgainThoughTheClusterDoesNotChange(t *testing.T) {
	t.Parallel() // it takes as long as the command line waits before it asks again
	f := newFake(t)
	queued := cluster("c1", 1, api.ClusterQueued)
	f.fixed("POST /v1/clusters", queued)
	f.watches("c1", queued)
	position := 3
	f.on("GET /v1/clusters/c1/explain", func(*http.Request, string) any {
		position--
		return api.Explanation{Waiting: []api.Waiting{{Kind: "create", Position: position, Reason: "no room"}}}
	})
	sh := f.shell()
	interrupts := make(chan os.Signal, 8)
	sh.interrupts = interrupts
	sh.told = func(text string) {
		if strings.Contains(text, "number 1 in the queue") {
			interrupts <- syscall.SIGINT
		}
	}
	has(t, sh.run(t, "cluster", "create", "c1", "--queue"), cli.ExitInterrupted, "number 2 in the queue: no room\n")
}
