package cli_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// dataVolume is a volume that is ready and holds three files; change makes it something else.
func dataVolume(change ...func(*api.VolumeStatus)) api.VolumeStatus {
	used, files := api.Bytes(1<<30), int64(3)
	v := api.VolumeStatus{
		Name: "data", UID: "vvvvvvvvvvvv", Project: "default", Kind: api.VolumeFiles, Size: 10 << 30, Files: 655360, Access: api.VolumeOneWriter, Retention: api.DefaultVolumeRetention,
		Phase: api.VolumeReady, Node: "n1", Held: 10 << 30, Used: &used, UsedFiles: &files, Clusters: []api.VolumeCluster{{Cluster: "c1", ReadOnly: true}},
		Snapshots: []api.VolumeSnapshot{{Name: "monday", Ready: true, Bytes: 512 << 20, CreatedAt: t0}}, CreatedAt: t0,
	}
	for _, c := range change {
		c(&v)
	}
	return v
}

// pending makes a volume wait for room, and creating one that its node makes.
func pending(v *api.VolumeStatus) {
	v.Phase, v.Node, v.Held, v.Used, v.UsedFiles, v.Snapshots = api.VolumePending, "", 0, nil, nil, nil
	v.Message = "no node has 10GiB left for volumes: node n1 has 3GiB of 16GiB left"
}

func creating(v *api.VolumeStatus) {
	v.Phase, v.Used, v.UsedFiles, v.Snapshots = api.VolumeCreating, nil, nil, nil
}

func TestVolumesAreListedAndShown(t *testing.T) {
	f := newFake(t)
	data, lab := dataVolume(), dataVolume(pending, func(v *api.VolumeStatus) { v.Name, v.Project, v.Clusters, v.Kind = "big", "lab", nil, api.VolumeBlock })
	f.fixed("GET /v1/volumes", api.List[api.VolumeStatus]{Items: []api.VolumeStatus{data, lab}})
	f.fixed("GET /v1/volumes/data", data)
	f.fixed("GET /v1/volumes/data/snapshots", api.List[api.VolumeSnapshot]{Items: data.Snapshots})
	f.fixed("GET /v1/whoami", api.Identity{User: "ada", Role: api.RoleAdmin, Project: "default"})
	has(t, f.shell().run(t, "volume", "list"), 0, "NAME  PROJECT  KIND   SIZE   USED  FILES  ACCESS      PHASE    NODE  ATTACHED\n",
		"data  default  files  10GiB  1GiB  3      one-writer  ready    n1    c1 (read-only)\n", "big   lab      block  10GiB  -     -      one-writer  pending  -     -\n")
	home := dataVolume(func(v *api.VolumeStatus) { v.Name, v.Home, v.User, v.Cluster = "clusterhome-u1", true, "ada", "c1" })
	f.fixed("GET /v1/volumes/clusterhome-u1", home)
	has(t, f.shell().run(t, "volume", "show", "clusterhome-u1"), 0, "Home:         of cluster c1, deleted with it\n", "Attached to:  c1 (read-only)\n")
	ended := dataVolume(func(v *api.VolumeStatus) {
		v.Name, v.Cluster, v.Clusters, v.Phase = "clusterhome-u1", "c1", nil, api.VolumePurging
	})
	f.fixed("GET /v1/volumes/ended", ended)
	has(t, f.shell().run(t, "volume", "show", "ended"), 0, "Attached to:  c1 (deleted)\n")
	has(t, f.shell().run(t, "volume", "show", "data"), 0, "Phase:        ready\n", "Files:        3 of 655360\n", "monday    yes    512MiB")
	has(t, f.shell().run(t, "volume", "show", "data", "-o", "json"), 0, `"retention": "1d"`, `"used": "1GiB"`)
	has(t, f.shell().run(t, "volume", "snapshot", "list", "data"), 0, "monday    yes    512MiB")
	has(t, f.shell().run(t, "__complete", "volume", "show", ""), 0, "data\nlab.big\n:4\n")
	has(t, f.shell().run(t, "__complete", "volume", "restore", ""), 0, "data@monday\n:4\n")
	has(t, f.shell().run(t, "volume", "show", "nothing"), cli.ExitNotFound, "nothing is at")
}

func TestANewVolumeIsWaitedFor(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/volumes", dataVolume(creating))
	f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(creating), dataVolume())
	has(t, f.shell().run(t, "volume", "create", "data", "--size", "10GiB", "--access", "shared", "--retention", "7d", "--node", "n1", "--files", "1000"), 0, "Phase:        ready\n")
	f.expect(`POST /v1/volumes {"name":"data","size":"10GiB","files":1000,"access":"shared","node":"n1","retention":"7d"}`,
		"GET /v1/volumes/vvvvvvvvvvvv", "GET /v1/volumes/vvvvvvvvvvvv")
}

func TestAVolumeWithoutRoomEndsTheWaitWithTheReason(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/volumes", dataVolume(pending))
	f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", dataVolume(pending), dataVolume(creating), dataVolume())
	has(t, f.shell().run(t, "volume", "create", "data", "--size", "10GiB"), cli.ExitRefused,
		`volume "data" has no place yet: no node has 10GiB left for volumes: node n1 has 3GiB of 16GiB left`, "nearmetal volume delete data --now")
	unsure := newFake(t)
	unsure.fixed("POST /v1/volumes", dataVolume(pending, func(v *api.VolumeStatus) { v.Undecided = true }))
	unsure.fixed("GET /v1/volumes/vvvvvvvvvvvv", dataVolume())
	has(t, unsure.shell().run(t, "volume", "create", "data", "--size", "10GiB"), 0, "Phase:        ready\n")
	has(t, f.shell().run(t, "volume", "create", "data", "--size", "10GiB", "--no-wait"), 0, "Phase:        pending\n")
	has(t, f.shell().run(t, "volume", "create", "data", "--size", "10GiB", "--timeout", "1m"), 0, "Phase:        ready\n")
}

func TestFlagsOfVolumesAreChecked(t *testing.T) {
	f := newFake(t)
	for _, tt := range []struct {
		want string
		args []string
	}{
		{"name the volume", []string{"create"}},
		{"size: is missing", []string{"create", "data"}},
		{"--size", []string{"create", "data", "--size", "many"}},
		{"--retention", []string{"create", "data", "--size", "1GiB", "--retention", "long"}},
		{`"all" is not a kind of access`, []string{"create", "data", "--size", "1GiB", "--access", "all"}},
		{"io_limit: 1000 per second is not a limit of I/O; give 1MiB to 1TiB", []string{"create", "data", "--size", "1GiB", "--io-limit", "1000"}},
		{"--io-limit: \"fast\" is not a size", []string{"create", "data", "--size", "1GiB", "--io-limit", "fast"}},
		{"--io-limit: 0 would let nobody read or write; write none for no limit", []string{"resize", "data", "--io-limit", "0"}},
		{"is not a limit of I/O", []string{"resize", "data", "--io-limit", "1023KiB"}},
		{"kept for homes", []string{"create", "home-eve", "--size", "1GiB"}},
		{"give what to change", []string{"resize", "data"}},
		{"NAME@SNAPSHOT", []string{"restore", "data"}},
		{"NAME@SNAPSHOT", []string{"snapshot", "create", "data"}},
		{"NAME@SNAPSHOT", []string{"snapshot", "restore", "data@a@b"}},
		{"NAME@SNAPSHOT", []string{"snapshot", "delete", "@a"}},
		{"is not a DNS label", []string{"snapshot", "create", "data@Monday"}},
		{"name the volumes to delete", []string{"delete"}},
		{"name the volumes to bring back", []string{"undelete"}},
	} {
		has(t, f.shell().run(t, append([]string{"volume"}, tt.args...)...), cli.ExitUsage, tt.want)
	}
	f.expect()
}

func TestAResizeWaitsForTheNode(t *testing.T) {
	f := newFake(t)
	grows := func(message string) api.VolumeStatus {
		return dataVolume(func(v *api.VolumeStatus) { v.Size, v.Resizing, v.Message = 20<<30, true, message })
	}
	done := dataVolume(func(v *api.VolumeStatus) { v.Size, v.Held = 20<<30, 20<<30 })
	f.inTurn("PATCH /v1/volumes/data", grows(""), grows("waits to grow from 10GiB to 20GiB: node n1 has 3GiB left for volumes"))
	f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", grows(""), done)
	has(t, f.shell().run(t, "volume", "resize", "data", "--size", "20GiB"), 0, "Size:         20GiB\n")
	has(t, f.shell().run(t, "volume", "resize", "data", "--size", "20GiB"), cli.ExitRefused, "does not have its size of 20GiB yet: waits to grow", "3GiB left")
	f.fixed("PATCH /v1/volumes/other", dataVolume())
	has(t, f.shell().run(t, "volume", "resize", "other", "--access", "shared", "--files", "9999"), 0, "Phase:        ready\n")
}

func TestALimitOfIOIsSentShownAndLifted(t *testing.T) {
	f := newFake(t)
	limited := func(unlimited string) api.VolumeStatus {
		return dataVolume(func(v *api.VolumeStatus) { v.IOLimit, v.IOUnlimited = 200<<20, unlimited })
	}
	f.fixed("POST /v1/volumes", limited(""))
	f.fixed("GET /v1/volumes/vvvvvvvvvvvv", limited(""))
	f.fixed("PATCH /v1/volumes/data", dataVolume())
	f.fixed("GET /v1/volumes/data", limited("writes that the kernel buffers, because its control groups are of version 1"))
	has(t, f.shell().run(t, "volume", "create", "data", "--size", "10GiB", "--io-limit", "200MiB", "--no-wait"), 0,
		"I/O limit:    200MiB/s read and 200MiB/s written by each member\n")
	has(t, f.shell().run(t, "volume", "resize", "data", "--io-limit", "none"), 0, "Phase:        ready\n")
	has(t, f.shell().run(t, "volume", "resize", "data", "--io-limit", "1MiB"), 0)
	f.expect(`POST /v1/volumes {"name":"data","size":"10GiB","io_limit":"200MiB"}`, `PATCH /v1/volumes/data {"io_limit":"0"}`, `PATCH /v1/volumes/data {"io_limit":"1MiB"}`)
	has(t, f.shell().run(t, "volume", "show", "data"), 0, "written by each member; node n1 does not limit writes that the kernel buffers, because")
	has(t, f.shell().run(t, "volume", "show", "data", "-o", "json"), 0, `"io_limit": "200MiB"`)
}

func TestSnapshotsOfAVolumeAreMadeRestoredAndDeleted(t *testing.T) {
	f := newFake(t)
	wanted := dataVolume(func(v *api.VolumeStatus) { v.Snapshots[0].Ready = false })
	f.fixed("POST /v1/volumes/data/snapshots", wanted)
	f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", wanted, dataVolume())
	has(t, f.shell().run(t, "volume", "snapshot", "create", "data@monday"), 0, "monday    yes    512MiB")
	for _, noun := range [][]string{{"volume", "restore"}, {"volume", "snapshot", "restore"}} {
		f := newFake(t)
		restored := func(done bool) api.VolumeStatus {
			return dataVolume(func(v *api.VolumeStatus) { v.Restore = &api.VolumeRestore{Snapshot: "monday", Done: done} })
		}
		f.fixed("POST /v1/volumes/data/snapshots/monday/restore", restored(false))
		f.inTurn("GET /v1/volumes/vvvvvvvvvvvv", restored(false), restored(true))
		has(t, f.shell().run(t, append(noun, "data@monday")...), 0, "Restore:      from monday, done\n")
	}
	f.fixed("DELETE /v1/volumes/data/snapshots/monday", dataVolume())
	has(t, f.shell().run(t, "volume", "snapshot", "delete", "data@monday"), 0, "snapshot data@monday deleted\n")
}

func TestADeletedVolumeIsKeptUnlessItIsToGoNow(t *testing.T) {
	purge := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	deleted := dataVolume(func(v *api.VolumeStatus) { v.Phase, v.DeletedAt, v.PurgeAt = api.VolumeDeleted, &t0, &purge })
	f := newFake(t)
	f.fixed("DELETE /v1/volumes/data", deleted)
	f.fixed("GET /v1/volumes/data", dataVolume())
	f.on("GET /v1/volumes/vvvvvvvvvvvv", func(*http.Request, string) any {
		return &api.Problem{Code: "volume_not_found", Status: http.StatusNotFound, Detail: "gone"}
	})
	f.fixed("POST /v1/volumes/data/undelete", dataVolume())
	has(t, f.shell().run(t, "volume", "delete", "data"), 0, "volume data deleted; it is kept until 2026-03-04T05:06:07Z ('nearmetal volume undelete data' brings it back)\n")
	has(t, f.shell().run(t, "volume", "undelete", "data"), 0, "volume data is back (ready)\n")
	has(t, f.shell().run(t, "volume", "delete", "data", "--now"), cli.ExitUsage, `volume "data" was not deleted: it holds 3 files (1GiB) and 1 snapshot, which would be lost; repeat the command with --yes`)
	has(t, f.shell().run(t, "volume", "delete", "data", "--now", "--yes"), 0, "volume data deleted and wiped\n")
	has(t, f.shell().run(t, "volume", "delete", "data", "--now", "--yes", "--no-wait"), 0, "volume data is being wiped\n")
}

func TestAVolumeIsWipedWithoutAQuestionOnlyIfItIsKnownToBeEmpty(t *testing.T) {
	none := int64(0)
	for what, test := range map[string]struct {
		v    api.VolumeStatus
		code int
		says string
	}{
		"empty":       {dataVolume(func(v *api.VolumeStatus) { v.UsedFiles, v.Snapshots = &none, nil }), 0, "is being wiped"},
		"never made":  {dataVolume(pending), 0, "is being wiped"},
		"a snapshot":  {dataVolume(func(v *api.VolumeStatus) { v.UsedFiles = &none }), cli.ExitUsage, "holds 0 files (1GiB) and 1 snapshot"},
		"node silent": {dataVolume(creating, func(v *api.VolumeStatus) { v.Phase, v.Message = api.VolumeUnavailable, "node n1 is not heard of" }), cli.ExitUsage, "it can't be inspected (unavailable: node n1 is not heard of)"},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFake(t)
			f.fixed("GET /v1/volumes/data", test.v)
			f.fixed("DELETE /v1/volumes/data", test.v)
			has(t, f.shell().run(t, "volume", "delete", "data", "--now", "--no-wait"), test.code, test.says)
		})
	}
}

func TestAProjectsQuotaBoundsItsStorage(t *testing.T) {
	f := newFake(t)
	lab := api.ProjectStatus{Project: api.Project{Name: "lab", Quota: api.Quota{Storage: 10 << 40, Datasets: 5 << 40}}, Used: api.Quota{Storage: 3 << 30, Datasets: 70 << 20}}
	f.fixed("PATCH /v1/projects/lab", lab)
	f.fixed("GET /v1/projects/lab", lab)
	has(t, f.shell().run(t, "project", "set", "lab", "--storage", "10TiB"), 0, "Storage:   3GiB of 10TiB\n")
	has(t, f.shell().run(t, "project", "set", "lab", "--addresses", "3"), 0, "lab")
	has(t, f.shell().run(t, "project", "show", "lab"), 0, "Storage:   3GiB of 10TiB\n", "Datasets:  70MiB of 5TiB\n")
	has(t, f.shell().run(t, "project", "set", "lab", "--datasets", "5TiB"), 0, "Datasets:  70MiB of 5TiB\n")
	has(t, f.shell().run(t, "project", "set", "lab", "--storage", "much"), cli.ExitUsage, "--storage")
	f.expect(`PATCH /v1/projects/lab {"quota":{"storage":"10TiB"}}`, `PATCH /v1/projects/lab {"quota":{"addresses":3}}`, "GET /v1/projects/lab", `PATCH /v1/projects/lab {"quota":{"datasets":"5TiB"}}`)
}

func TestAProjectsQuotaBoundsItsEnergy(t *testing.T) {
	f := newFake(t)
	lab := api.ProjectStatus{Project: api.Project{Name: "lab", Quota: api.Quota{EnergyJoules: 180e6}}, Used: api.Quota{EnergyJoules: 9e6}}
	f.fixed("PATCH /v1/projects/lab", lab)
	f.fixed("GET /v1/projects/lab", lab)
	has(t, f.shell().run(t, "project", "set", "lab", "--energy", "50kWh"), 0, "Energy:    2.5 kWh of 50 kWh in 30 days\n")
	has(t, f.shell().run(t, "project", "set", "lab", "--energy", "1.5MJ"), 0, "lab")
	has(t, f.shell().run(t, "project", "set", "lab", "--energy", "0"), 0, "lab")
	for _, wrong := range []string{"50", "kWh", "-1kWh", "50 kw", "NaNJ", "1e30MWh", "0.1J", ""} {
		has(t, f.shell().run(t, "project", "set", "lab", "--energy", wrong), cli.ExitUsage, "--energy: \""+wrong+"\" is not an amount of energy")
	}
	f.expect(`PATCH /v1/projects/lab {"quota":{"energy_joules":180000000}}`, `PATCH /v1/projects/lab {"quota":{"energy_joules":1500000}}`,
		`PATCH /v1/projects/lab {"quota":{"energy_joules":0}}`)
}

func TestANodeShowsItsRoomForVolumes(t *testing.T) {
	f := newFake(t)
	agent := api.AgentPart{FirstSeenAt: t0, VolumePool: &api.VolumePool{Kind: "xfs", CapacityBytes: 100 << 30, HeldBytes: 3 << 30}, VolumeBytes: 10 << 30}
	f.fixed("GET /v1/nodes/n1", api.Node{Name: "n1", Agent: &agent})
	f.fixed("GET /v1/nodes/n2", api.Node{Name: "n2", Agent: &api.AgentPart{FirstSeenAt: t0, VolumePool: &api.VolumePool{Problems: []string{"no file system with reflinks"}}}})
	has(t, f.shell().run(t, "node", "show", "n1"), 0, "xfs, 10GiB of 100GiB promised to volumes, 3GiB held\n")
	agent.VolumePool.UnlimitedIO = "writes that the kernel buffers"
	f.fixed("GET /v1/nodes/n3", api.Node{Name: "n3", Agent: &agent})
	has(t, f.shell().run(t, "node", "show", "n3"), 0, "3GiB held; limits of I/O do not bound writes that the kernel buffers\n")
	has(t, f.shell().run(t, "node", "show", "n2"), 0, "none: no file system with reflinks\n")
}
