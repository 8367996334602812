package plan

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

const gib = 1 << 30

// wanted is a volume of some GiB that is wanted; changes make it something else.
func wanted(uid string, size int64, changes ...func(*Volume)) Volume {
	v := Volume{Intent: &api.VolumeIntent{UID: uid, Name: "p." + uid, Project: "p", SizeBytes: size * gib, MaxFiles: 100, CreatedAt: now}}
	for _, change := range changes {
		change(&v)
	}
	return v
}

// on gives a volume a record on a node.
func on(node string, change ...func(*api.VolumeRecord)) func(*Volume) {
	return func(v *Volume) {
		v.Record = &api.VolumeRecord{UID: v.Intent.UID, Name: v.Intent.Name, Node: node, SizeBytes: v.Intent.SizeBytes, Generation: 1}
		for _, c := range change {
			c(v.Record)
		}
	}
}

func made(r *api.VolumeRecord)    { r.Made = true }
func purging(r *api.VolumeRecord) { r.Made, r.Purging = true, true }
func holds(size int64) func(*api.VolumeRecord) {
	return func(r *api.VolumeRecord) { r.SizeBytes = size * gib }
}

// deleted marks a volume as deleted, to be purged after some time.
func deleted(after time.Duration) func(*Volume) {
	return func(v *Volume) {
		at, purge := now, now.Add(after)
		v.Intent.DeleteRequestedAt, v.Intent.PurgeAt = &at, &purge
	}
}

// homeOf makes a volume the home of a cluster; "over" has ended.
func homeOf(cluster string) func(*Volume) {
	return func(v *Volume) { v.Intent.Cluster, v.Intent.ClusterUID = "p.web", cluster }
}

func limited(v *Volume) { v.Intent.IOBytesPerSecond = 3 << 20 }

func at(node string) func(*Volume) { return func(v *Volume) { v.Intent.Node = node } }
func cloneOf(uid, snapshot string) func(*Volume) {
	return func(v *Volume) { v.Intent.Origin = &api.VolumeOrigin{VolumeUID: uid, SnapshotUID: snapshot} }
}
func ofBackup(v *Volume)              { v.Intent.Origin = &api.VolumeOrigin{Upload: true} }
func of(project string) func(*Volume) { return func(v *Volume) { v.Intent.Project = project } }
func older(v *Volume)                 { v.Intent.CreatedAt = now.Add(-time.Hour) }

// node is one that is heard of, with a pool of some GiB.
func node(name string, capacity int64, changes ...func(*Node)) Node {
	n := Node{Name: name, Heard: true, Pool: &api.VolumePool{Kind: "xfs", CapacityBytes: capacity * gib}}
	for _, change := range changes {
		change(&n)
	}
	return n
}

func silent(n *Node)  { n.Heard = false }
func down(n *Node)    { n.Down = true }
func drained(n *Node) { n.Drained = true }
func noPool(n *Node)  { n.Pool = nil }
func broken(n *Node) {
	n.Pool = &api.VolumePool{CapacityBytes: 100 * gib, Problems: []string{"the disk is gone"}}
}
func purgedOn(uids ...string) func(*Node) { return func(n *Node) { n.Purged = uids } }

// finds adds what a node found of a volume.
func finds(uid string, size int64, change ...func(*volume.State)) func(*Node) {
	return func(n *Node) {
		s := volume.State{UID: uid, Ready: true, SizeBytes: size * gib}
		for _, c := range change {
			c(&s)
		}
		n.Volumes = append(n.Volumes, s)
	}
}

func incomplete(s *volume.State) { s.Ready = false }
func waits(i volume.ImportState) func(*volume.State) {
	return func(s *volume.State) { s.Ready, s.SizeBytes, s.Import = false, 0, &i }
}

func snapshot(uid string, held int64) func(*volume.State) {
	return func(s *volume.State) {
		s.Snapshots = append(s.Snapshots, volume.SnapshotState{UID: uid, HeldBytes: held * gib})
	}
}

func attachedTo(cluster string) func(*volume.State) {
	return func(s *volume.State) { s.Attached = []string{cluster} }
}
func says(text string) func(*volume.State) { return func(s *volume.State) { s.Problem = text } }

func nodesOf(all ...Node) []Node { return all }

func TestVolumesArePlannedFromTheSituation(t *testing.T) {
	origin := wanted("o", 4, on("n1", made))
	place := func(node string, size int64) []Operation {
		return []Operation{Place{Node: node, SizeBytes: size * gib}}
	}
	for what, test := range map[string]struct {
		volumes []Volume
		nodes   []Node
		claimed []string
		uid     string
		want    []Operation
		wake    time.Duration // 0: never
	}{
		"the node with most room left gets a new volume": {
			[]Volume{wanted("a", 10), wanted("b", 30, of("q"), on("n2", made))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", place("n1", 10), 0,
		},
		"a new volume goes beside others of its project": {
			[]Volume{wanted("a", 5), wanted("b", 30, on("n2", made))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", place("n2", 5), 0,
		},
		"a new volume goes elsewhere where there is no room beside others of its project": {
			[]Volume{wanted("a", 15), wanted("b", 30, on("n2", made))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", place("n1", 15), 0,
		},
		"the wanted node gets it though another has more room": {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", place("n1", 10), 0},
		"the wanted node gets it though it is drained":         {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 20, drained)), nil, "a", place("n1", 10), 0},
		"the wanted node has too little room":                  {[]Volume{wanted("a", 30, at("n1"))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", nil, 0},
		"the wanted node is not heard of":                      {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 20, silent), node("n2", 40)), nil, "a", nil, 0},
		"a drained node gets none":                             {[]Volume{wanted("a", 10)}, nodesOf(node("n1", 20, drained)), nil, "a", nil, 0},
		"a silent node gets none":                              {[]Volume{wanted("a", 10)}, nodesOf(node("n1", 20, silent)), nil, "a", nil, 0},
		"a node without a pool gets none":                      {[]Volume{wanted("a", 10)}, nodesOf(node("n1", 20, noPool)), nil, "a", nil, 0},
		"a node with a broken pool gets none":                  {[]Volume{wanted("a", 10)}, nodesOf(node("n1", 20, broken)), nil, "a", nil, 0},
		"a volume fits to the byte":                            {[]Volume{wanted("a", 20)}, nodesOf(node("n1", 20)), nil, "a", place("n1", 20), 0},
		"snapshots take room": {
			[]Volume{wanted("a", 10), wanted("b", 5, on("n1", made))}, nodesOf(node("n1", 16, finds("b", 5, snapshot("s", 2)))), nil, "a", nil, 0,
		},
		"what is being purged takes room":          {[]Volume{wanted("a", 10), wanted("b", 8, deleted(0), on("n1", purging))}, nodesOf(node("n1", 16)), nil, "a", nil, 0},
		"a volume that the site forgot takes room": {[]Volume{wanted("a", 10)}, nodesOf(node("n1", 16, finds("x", 8))), nil, "a", nil, 0},
		"the older of two volumes gets the room":   {[]Volume{wanted("a", 10), wanted("b", 10, older)}, nodesOf(node("n1", 16)), nil, "b", place("n1", 10), 0},
		"and the younger none":                     {[]Volume{wanted("a", 10), wanted("b", 10, older)}, nodesOf(node("n1", 16)), nil, "a", nil, 0},
		"a volume of a backup goes where there is room, and not to the node of another": {
			[]Volume{wanted("a", 10, ofBackup), wanted("b", 30, of("q"), on("n2", made))}, nodesOf(node("n1", 20), node("n2", 40)), nil, "a", place("n1", 10), 0,
		},
		"a volume that waits for its backup is not noted as made": {
			[]Volume{wanted("a", 4, ofBackup, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4, waits(volume.ImportState{})))), nil, "a", nil, 0,
		},
		"a volume whose backup has come is noted as made": {
			[]Volume{wanted("a", 4, ofBackup, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{NoteMade{}}, 0,
		},
		"a volume that waits for its backup can be purged": {
			[]Volume{wanted("a", 4, ofBackup, deleted(0), on("n1"))}, nodesOf(node("n1", 20, finds("a", 4, waits(volume.ImportState{})))), nil, "a", []Operation{Purge{}}, 0,
		},
		"a clone lies with its origin":               {[]Volume{wanted("c", 4, cloneOf("o", "s")), origin}, nodesOf(node("n1", 20), node("n2", 40)), nil, "c", place("n1", 4), 0},
		"a clone of what has no node waits":          {[]Volume{wanted("c", 4, cloneOf("o", "s")), wanted("o", 50)}, nodesOf(node("n1", 20)), nil, "c", nil, 0},
		"a clone of what is gone gets no node":       {[]Volume{wanted("c", 4, cloneOf("o", "s"))}, nodesOf(node("n1", 20)), nil, "c", nil, 0},
		"a clone of what is being purged waits":      {[]Volume{wanted("c", 4, cloneOf("o", "s")), wanted("o", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20)), nil, "c", nil, 0},
		"a volume that its node made is noted":       {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{NoteMade{}}, 0},
		"debris is not a volume":                     {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4, incomplete))), nil, "a", nil, 0},
		"what a silent node found before is no news": {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20, silent, finds("a", 4))), nil, "a", nil, 0},
		"a volume grows where there is room":         {[]Volume{wanted("a", 12, on("n1", made, holds(4)))}, nodesOf(node("n1", 12, finds("a", 4))), nil, "a", []Operation{Resize{12 * gib}}, 0},
		"a volume waits for room to grow":            {[]Volume{wanted("a", 13, on("n1", made, holds(4)))}, nodesOf(node("n1", 12, finds("a", 4))), nil, "a", nil, 0},
		"a volume of a silent node does not grow":    {[]Volume{wanted("a", 12, on("n1", made, holds(4)))}, nodesOf(node("n1", 20, silent)), nil, "a", nil, 0},
		"a volume has shrunk":                        {[]Volume{wanted("a", 4, on("n1", made, holds(12)))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{Resize{4 * gib}}, 0},
		"a volume that still holds more keeps its room": {
			[]Volume{wanted("a", 4, on("n1", made, holds(12)))}, nodesOf(node("n1", 20, finds("a", 12, says("it holds more")))), nil, "a", nil, 0,
		},
		"a deleted volume is kept":                       {[]Volume{wanted("a", 4, on("n1", made), deleted(time.Hour))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", nil, time.Hour},
		"a deleted volume is purged after its time":      {[]Volume{wanted("a", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{Purge{}}, 0},
		"a deleted volume of a silent node is purged":    {[]Volume{wanted("a", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, silent)), nil, "a", []Operation{Purge{}}, 0},
		"what a member may have is not purged":           {[]Volume{wanted("a", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, finds("a", 4))), []string{"a"}, "a", nil, 0},
		"what a node says is attached is not purged":     {[]Volume{wanted("a", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, finds("a", 4, attachedTo("c")))), nil, "a", nil, 0},
		"the origin of a clone to be made is not purged": {[]Volume{wanted("c", 4, cloneOf("o", "s"), on("n1")), wanted("o", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20)), nil, "o", nil, 0},
		"the origin of a clone that is made is purged": {
			[]Volume{wanted("c", 4, cloneOf("o", "s"), on("n1", made)), wanted("o", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, finds("c", 4))), nil, "o", []Operation{Purge{}}, 0,
		},
		"the origin of a second clone to be made is not purged": {
			[]Volume{wanted("c", 4, cloneOf("o", "s"), on("n1", made)), wanted("d", 40, cloneOf("o", "s")), wanted("o", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20)), nil, "o", nil, 0,
		},
		"a deleted volume without a node is forgotten beside a clone of it": {[]Volume{wanted("a", 4, deleted(0)), wanted("c", 4, cloneOf("a", "s"))}, nil, nil, "a", []Operation{Forget{}}, 0},
		"a deleted volume without a node is forgotten":                      {[]Volume{wanted("a", 4, deleted(0))}, nil, nil, "a", []Operation{Forget{}}, 0},
		"a deleted volume without a node is kept as well":                   {[]Volume{wanted("a", 4, deleted(time.Hour))}, nodesOf(node("n1", 20)), nil, "a", nil, time.Hour},
		"a volume of which nothing is left is forgotten":                    {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20, purgedOn("a"))), nil, "a", []Operation{Forget{}}, 0},
		"a volume of which something is left is not":                        {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20, purgedOn("a"), finds("a", 4, incomplete))), nil, "a", nil, 0},
		"a node that is silent proves nothing":                              {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20, silent, purgedOn("a"))), nil, "a", nil, 0},
		"that a node does not name a volume is no proof":                    {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20)), nil, "a", nil, 0},
		"another node proves nothing":                                       {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20), node("n2", 20, purgedOn("a"))), nil, "a", nil, 0},
		"a purge ends with its node":                                        {[]Volume{wanted("a", 4, deleted(0), on("n9", purging))}, nodesOf(node("n1", 20)), nil, "a", []Operation{Forget{}}, 0},
		"the home of a cluster that ended is purged":                        {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{Purge{Cluster: "over"}}, 0},
		"the home of a cluster that is there stays":                         {[]Volume{wanted("a", 4, on("n1", made), homeOf("c"))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", nil, 0},
		"a member of an ended cluster has its home":                         {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4))), []string{"a"}, "a", nil, 0},
		"an ended cluster has access to its home":                           {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4, attachedTo("over")))), nil, "a", nil, 0},
		"an ended cluster's home is to be cloned":                           {[]Volume{wanted("a", 4, on("n1", made), homeOf("over")), wanted("c", 4, cloneOf("a", "s"))}, nodesOf(node("n1", 4, finds("a", 4))), nil, "a", nil, 0},
		"an ended cluster's home without a node is over":                    {[]Volume{wanted("a", 4, homeOf("over"))}, nodesOf(node("n1", 20)), nil, "a", []Operation{Forget{}}, 0},
		"an ended cluster's home on a silent node goes":                     {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, silent)), nil, "a", []Operation{Purge{Cluster: "over"}}, 0},
		"a deleted home has no retention once its cluster ended":            {[]Volume{wanted("a", 4, on("n1", made), deleted(time.Hour), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", []Operation{Purge{Cluster: "over"}}, 0},
		"an undeleted volume stays":                                         {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20, finds("a", 4))), nil, "a", nil, 0},
	} {
		t.Run(what, func(t *testing.T) {
			s := Situation{Volumes: test.volumes, Nodes: test.nodes, Claimed: map[string]bool{}, Ended: map[string]bool{"over": true}, Now: now}
			for _, uid := range test.claimed {
				s.Claimed[uid] = true
			}
			decisions, wakeAt := Plan(s)
			var got []Operation
			if i := slices.IndexFunc(decisions, func(d Decision) bool { return d.UID == test.uid }); i >= 0 {
				got = decisions[i].Operations
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %#v, want %#v", got, test.want)
			}
			wantWake := time.Time{}
			if test.wake > 0 {
				wantWake = now.Add(test.wake)
			}
			if !wakeAt.Equal(wantWake) {
				t.Errorf("it looks again at %v, want %v", wakeAt, wantWake)
			}
		})
	}
}

func TestUsersAreShownWhereAVolumeIsInItsLife(t *testing.T) {
	for what, test := range map[string]struct {
		volumes []Volume
		nodes   []Node
		uid     string
		phase   api.VolumePhase
		message string
	}{
		"no room": {
			[]Volume{wanted("a", 10), wanted("b", 13, on("n1", made))},
			nodesOf(node("n1", 16)), "a",
			api.VolumePending, "no node has 10GiB left for volumes: node n1 has 3GiB of 16GiB left",
		},
		"no room on several nodes": {
			[]Volume{wanted("a", 10)},
			nodesOf(node("n1", 1), node("n2", 2), node("n3", 20, drained), node("n4", 20, silent), node("n5", 20, broken)), "a",
			api.VolumePending, "no node has 10GiB left for volumes: node n1 has 1GiB of 1GiB left, node n2 has 2GiB of 2GiB, node n3 is drained, and 2 more",
		},
		"no pools": {
			[]Volume{wanted("a", 10)},
			nodesOf(node("n1", 1, broken), node("n2", 2, noPool)), "a",
			api.VolumePending, "no node can keep volumes now: node n1 has no pool for volumes that works: the disk is gone, node n2 has no pool for volumes",
		},
		"no nodes":           {[]Volume{wanted("a", 10)}, nil, "a", api.VolumePending, "the site has no node yet that could keep volumes"},
		"no room where":      {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 4)), "a", api.VolumePending, "node n1 has 4GiB of 4GiB left for volumes, and 10GiB are needed"},
		"the node is silent": {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 40, silent), node("n2", 40)), "a", api.VolumePending, "node n1 is not heard of"},
		"the node is down":   {[]Volume{wanted("a", 10, at("n1"))}, nodesOf(node("n1", 40, silent, down), node("n2", 4, silent)), "a", api.VolumePending, "node n1 is not heard of"},
		"no such node":       {[]Volume{wanted("a", 10, at("n9"))}, nodesOf(node("n1", 4)), "a", api.VolumePending, "node n9 is not known"},
		"being made":         {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20)), "a", api.VolumeCreating, ""},
		"made in part":       {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4, incomplete, says("the disk is slow")))), "a", api.VolumeCreating, "the disk is slow"},
		"to be imported": {
			[]Volume{wanted("a", 4, ofBackup, on("n1"))},
			nodesOf(node("n1", 20, finds("a", 4, waits(volume.ImportState{})))), "a",
			api.VolumeImporting, "waits for a backup; send it with 'nearmetal volume create a --from-backup FILE'",
		},
		"importing": {
			[]Volume{wanted("a", 4, ofBackup, on("n1"))},
			nodesOf(node("n1", 20, finds("a", 4, waits(volume.ImportState{Receiving: true, ReceivedBytes: gib})))), "a",
			api.VolumeImporting, "1GiB received",
		},
		"import failed": {
			[]Volume{wanted("a", 4, ofBackup, on("n1"))},
			nodesOf(node("n1", 20, finds("a", 4, waits(volume.ImportState{Failure: "it is damaged"})))), "a",
			api.VolumeImporting, "waits for a backup; the last one failed: it is damaged",
		},
		"imported, not noted":   {[]Volume{wanted("a", 4, ofBackup, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeImporting, ""},
		"imported":              {[]Volume{wanted("a", 4, ofBackup, on("n1", made))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, ""},
		"import, silent":        {[]Volume{wanted("a", 4, ofBackup, on("n1"))}, nodesOf(node("n1", 20)), "a", api.VolumeCreating, ""},
		"import, no node":       {[]Volume{wanted("a", 4, ofBackup)}, nodesOf(node("n1", 1)), "a", api.VolumePending, "no node has 4GiB left for volumes: node n1 has 1GiB of 1GiB left"},
		"ready":                 {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, ""},
		"ready, not noted":      {[]Volume{wanted("a", 4, on("n1"))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, ""},
		"growing":               {[]Volume{wanted("a", 8, on("n1", made))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, ""},
		"waiting to grow":       {[]Volume{wanted("a", 30, on("n1", made, holds(4)))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, "waits to grow from 4GiB to 30GiB: node n1 has 16GiB left for volumes"},
		"shrinking":             {[]Volume{wanted("a", 2, on("n1", made, holds(4)))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeReady, ""},
		"too full to":           {[]Volume{wanted("a", 2, on("n1", made, holds(4)))}, nodesOf(node("n1", 20, finds("a", 4, says("it holds 3GiB")))), "a", api.VolumeReady, "it holds 3GiB"},
		"node away":             {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20, silent)), "a", api.VolumeUnavailable, "node n1 is not heard of"},
		"node gone":             {[]Volume{wanted("a", 4, on("n9", made))}, nodesOf(node("n1", 20)), "a", api.VolumeUnavailable, "node n9 is no node of the site any more"},
		"lost":                  {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20)), "a", api.VolumeUnavailable, "node n1 has lost it: nothing of it is there; delete it with --now to give it up"},
		"lost with a disk":      {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20, broken)), "a", api.VolumeUnavailable, "node n1 has lost it: the disk is gone"},
		"incomplete":            {[]Volume{wanted("a", 4, on("n1", made))}, nodesOf(node("n1", 20, finds("a", 4, incomplete))), "a", api.VolumeUnavailable, "its node found it incomplete"},
		"restoring":             {[]Volume{wanted("a", 4, on("n1", made), func(v *Volume) { v.Intent.Restore = &api.VolumeRestoreIntent{SnapshotUID: "s", Number: 1} })}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeUnavailable, "it is being restored from a snapshot"},
		"deleted":               {[]Volume{wanted("a", 4, on("n1", made), deleted(time.Hour))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeDeleted, "purged at 2026-03-04T06:06:07Z; until then, 'nearmetal volume undelete a' brings it back"},
		"deleted, a clone":      {[]Volume{wanted("a", 4, on("n1", made), deleted(0)), wanted("c", 4, cloneOf("a", "s"), on("n1"))}, nodesOf(node("n1", 20)), "a", api.VolumeDeleted, `purged once volume "c", a clone of it, is made`},
		"deleted, attached":     {[]Volume{wanted("a", 4, on("n1", made), deleted(0))}, nodesOf(node("n1", 20, finds("a", 4, attachedTo("c")))), "a", api.VolumeDeleted, "purged once no member has it attached"},
		"purging":               {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumePurging, ""},
		"purging away":          {[]Volume{wanted("a", 4, deleted(0), on("n1", purging))}, nodesOf(node("n1", 20, silent)), "a", api.VolumePurging, "node n1 is not heard of; it wipes the volume once it is back"},
		"its cluster ended":     {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4))), "a", api.VolumeDeleted, "cluster web is deleted; purged now"},
		"its cluster is ending": {[]Volume{wanted("a", 4, on("n1", made), homeOf("over"))}, nodesOf(node("n1", 20, finds("a", 4, attachedTo("over")))), "a", api.VolumeDeleted, "cluster web is deleted; purged once no member has it attached"},
	} {
		s := Situation{Volumes: test.volumes, Nodes: test.nodes, Ended: map[string]bool{"over": true}, Now: now}
		got := Show(&s, test.uid)
		if got.Phase != test.phase || got.Message != test.message {
			t.Errorf("%s: got %s %q, want %s %q", what, got.Phase, got.Message, test.phase, test.message)
		}
		if unsure := slices.Contains([]string{"no room on several nodes", "the node is silent"}, what); got.Undecided != unsure {
			t.Errorf("%s: it may get a place soon: %t, want %t", what, got.Undecided, unsure)
		}
		if resizes := slices.Contains([]string{"growing", "waiting to grow", "shrinking", "too full to"}, what); got.Resizing != resizes {
			t.Errorf("%s: it is being resized: %t, want %t", what, got.Resizing, resizes)
		}
	}
}

func TestUsersAreShownWhatALimitOfIODoesNotBound(t *testing.T) {
	boundless := func(n *Node) { n.Pool.UnlimitedIO = "buffered writes" }
	for what, test := range map[string]struct {
		volume Volume
		node   Node
		want   string
	}{
		"a limit on a node that bounds less":     {wanted("a", 4, on("n1", made), limited), node("n1", 20, boundless), "buffered writes"},
		"no limit on a node that bounds less":    {wanted("a", 4, on("n1", made)), node("n1", 20, boundless), ""},
		"a limit on a node that bounds all":      {wanted("a", 4, on("n1", made), limited), node("n1", 20), ""},
		"a limit on a node that has no pool":     {wanted("a", 4, on("n1", made), limited), node("n1", 20, noPool), ""},
		"a limit of a volume without a place":    {wanted("a", 4, limited), node("n1", 20, boundless), ""},
		"a limit on a node that is not heard of": {wanted("a", 4, on("n1", made), limited), node("n1", 20, boundless, silent), "buffered writes"},
	} {
		s := Situation{Volumes: []Volume{test.volume}, Nodes: nodesOf(test.node), Now: now}
		if got := Show(&s, "a").UnlimitedIO; got != test.want {
			t.Errorf("%s: got %q, want %q", what, got, test.want)
		}
	}
}

func TestANodeIsToldWhatItsVolumesShouldBe(t *testing.T) {
	snapshots := func(names ...string) func(*Volume) {
		return func(v *Volume) {
			for _, name := range names {
				v.Intent.Snapshots = append(v.Intent.Snapshots, api.VolumeSnapshotIntent{Name: name, UID: name})
			}
		}
	}
	for what, test := range map[string]struct {
		volumes []Volume
		uid     string
		want    *volume.Volume // nil: nothing
	}{
		"a new volume":            {[]Volume{wanted("a", 4, on("n1"))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100}},
		"one that was made":       {[]Volume{wanted("a", 4, on("n1", made))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Made: true}},
		"one with a limit of I/O": {[]Volume{wanted("a", 4, on("n1"), limited)}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, IOBytesPerSecond: 3 << 20}},
		"a purge with a limit":    {[]Volume{wanted("a", 4, deleted(0), on("n1", purging), limited)}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, Made: true, Purge: true}},
		"one that waits to grow":  {[]Volume{wanted("a", 8, on("n1", holds(4)))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100}},
		"one that is to shrink":   {[]Volume{wanted("a", 2, on("n1", holds(4)))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 2 * gib, MaxFiles: 100}},
		"a clone to be made":      {[]Volume{wanted("c", 4, cloneOf("o", "s"), on("n1"))}, "c", &volume.Volume{UID: "c", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Origin: &api.VolumeOrigin{VolumeUID: "o", SnapshotUID: "s"}}},
		"one that waits":          {[]Volume{wanted("a", 4, ofBackup, on("n1"))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Origin: &api.VolumeOrigin{Upload: true}}},
		"a clone that was made":   {[]Volume{wanted("c", 4, cloneOf("o", "s"), on("n1", made))}, "c", &volume.Volume{UID: "c", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Made: true}},
		"a snapshot":              {[]Volume{wanted("a", 4, on("n1"), snapshots("s"))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Snapshots: []string{"s"}}},
		"a snapshot for a clone":  {[]Volume{wanted("a", 4, on("n1"), snapshots("s")), wanted("c", 4, cloneOf("a", "gone"))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Snapshots: []string{"s", "gone"}}},
		"a snapshot, clone made":  {[]Volume{wanted("a", 4, on("n1"), snapshots("s")), wanted("c", 4, cloneOf("a", "gone"), on("n1", made))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100, Snapshots: []string{"s"}}},
		"a deleted volume stays":  {[]Volume{wanted("a", 4, on("n1"), deleted(0))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, MaxFiles: 100}},
		"a purge":                 {[]Volume{wanted("a", 4, deleted(0), on("n1", purging), snapshots("s"))}, "a", &volume.Volume{UID: "a", Generation: 7, SizeBytes: 4 * gib, Made: true, Purge: true}},
		"a volume without a node": {[]Volume{wanted("a", 4)}, "a", nil},
		"no such volume":          {nil, "a", nil},
	} {
		told := Told(test.volumes, func(string) int64 { return 7 })["n1"]
		i := slices.IndexFunc(told, func(v volume.Volume) bool { return v.UID == test.uid })
		if (i >= 0) != (test.want != nil) || i >= 0 && !reflect.DeepEqual(told[i], *test.want) {
			t.Errorf("%s: got %+v, want %+v", what, told, test.want)
		}
	}
}

func TestWhatIsLeftOfAPoolIsCounted(t *testing.T) {
	s := Situation{
		Volumes: []Volume{wanted("a", 4, on("n1", made)), wanted("b", 100, on("n2", made))},
		Nodes:   nodesOf(node("n1", 20, finds("a", 4, snapshot("s", 1))), node("n2", 20), node("n3", 20, noPool), node("n4", 20, broken)),
	}
	for name, want := range map[string]struct {
		left int64
		ok   bool
	}{"n1": {15 * gib, true}, "n2": {0, true}, "n3": {0, false}, "n4": {100 * gib, false}, "n9": {0, false}} {
		if left, _, ok := Left(s, name); left != want.left || ok != want.ok {
			t.Errorf("node %s has %d left, usable: %t; want %+v", name, left, ok, want)
		}
	}
	if text := few([]string{"a", "b", "c", "d"}); !strings.HasSuffix(text, "c, and 1 more") {
		t.Errorf("got %q", text)
	}
}
