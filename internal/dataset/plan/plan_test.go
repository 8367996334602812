package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
)

func events(change func(*Dataset)) []Dataset {
	d := Dataset{Dataset: &api.Dataset{Name: "events", UID: "u1", Files: make([]api.DatasetFile, 2)}, Members: []string{"n1", "n2", "n3"}}
	if change != nil {
		change(&d)
	}
	return []Dataset{d}
}

func node(name string, states ...dataset.State) Node {
	return Node{Name: name, PeerURL: "http://" + name, States: states}
}

// heard are nodes that have said that they have nothing yet.
func heard(names ...string) []Node {
	var nodes []Node
	for _, name := range names {
		nodes = append(nodes, node(name, dataset.State{UID: "u1"}))
	}
	return nodes
}

func wantedOf(t *testing.T, told map[string][]dataset.Wanted, name string) dataset.Wanted {
	t.Helper()
	if len(told[name]) != 1 {
		t.Fatalf("node %s has the order %+v, want one dataset", name, told[name])
	}
	return told[name][0]
}

func seeds(told map[string][]dataset.Wanted) []string {
	var names []string
	for name, all := range told {
		for _, w := range all {
			if w.Keep && !w.Wait && len(w.Contents) == 0 {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func TestOneNodeFetchesFromTheSources(t *testing.T) {
	if got := seeds(Orders(events(nil), nil)); len(got) > 0 {
		t.Errorf("before a node is heard, %v fetch; want none", got)
	}
	if got := seeds(Orders(events(nil), heard("n1", "n2", "n3"))); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("%v fetch from the sources, want n1 alone", got)
	}
	nodes := heard("n1", "n2", "n3")
	nodes[1].States[0].HeldBytes = 5
	if got := seeds(Orders(events(nil), nodes)); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("%v fetch, want n2, which has begun", got)
	}
	nodes[1].States[0].Failed = true
	if got := seeds(Orders(events(nil), nodes)); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("%v fetch after n2 failed, want n1", got)
	}
	nodes[2].PeerURL = "" // it can't take anything from others
	if got := seeds(Orders(events(nil), nodes)); !slices.Equal(got, []string{"n1", "n3"}) {
		t.Errorf("%v fetch, want n3 besides n1", got)
	}
}

func TestOthersTakeADatasetFromTheNodeThatHasIt(t *testing.T) {
	nodes := heard("n1", "n2", "n3")
	contents := []dataset.Content{{SizeBytes: 1}, {SizeBytes: 2}}
	nodes[0].States[0] = dataset.State{UID: "u1", Whole: true, Contents: contents}
	told := Orders(events(nil), nodes)
	w := wantedOf(t, told, "n2")
	if w.Wait || len(w.Contents) != 2 || !slices.Equal(w.Peers, []string{"http://n1", "http://n3"}) && !slices.Equal(w.Peers, []string{"http://n3", "http://n1"}) {
		t.Errorf("n2 has the order %+v, want contents, and the peers n1 and n3", w)
	}
	nodes[0].PeerURL = "" // it serves nothing
	if w := wantedOf(t, Orders(events(nil), nodes), "n2"); len(w.Contents) > 0 || w.Wait {
		t.Errorf("without a serving node n2 has the order %+v, want it to fetch from the sources", w)
	}
}

func TestAPrivateDatasetIsPassedOnByNobody(t *testing.T) {
	nodes := heard("n1", "n2", "n3")
	nodes[0].States[0] = dataset.State{UID: "u1", Whole: true, Contents: make([]dataset.Content, 2)}
	for _, sealed := range []func(*Dataset){
		func(d *Dataset) { d.Credential = &api.DatasetCredential{Token: "t"} },
		func(d *Dataset) { d.Dataset.Sealed = []byte{1} }, // it did not open
	} {
		told := Orders(events(sealed), nodes)
		for _, name := range []string{"n2", "n3"} {
			if w := wantedOf(t, told, name); len(w.Peers) > 0 || len(w.Contents) > 0 || w.Wait {
				t.Errorf("%s has the order %+v of a private dataset, want it to fetch by itself", name, w)
			}
		}
	}
}

func TestWhatIsNoLongerWantedIsNamedByItsNumberOnly(t *testing.T) {
	nodes := heard("n1", "n9")
	all := events(func(d *Dataset) { d.Members, d.Evictions = []string{"n1"}, map[string]int64{"n9": 3} })
	if w := wantedOf(t, Orders(all, nodes), "n9"); w.Keep || w.Purge || w.Evictions != 3 || len(w.Files) > 0 {
		t.Errorf("n9, which has a replica that nobody wants, has the order %+v; want the number of its eviction", w)
	}
	if w := wantedOf(t, Orders(nil, nodes), "n9"); !w.Purge || w.Keep {
		t.Errorf("after the dataset was deleted n9 has the order %+v, want it purged", w)
	}
	all = events(func(d *Dataset) { d.Members, d.Dataset.Nodes = nil, []string{"n9"} })
	if w := wantedOf(t, Orders(all, nodes), "n9"); !w.Keep {
		t.Errorf("n9, which is to replicate, has the order %+v", w)
	}
}

// TestEveryDatasetComesToEveryNode plays nodes that follow orders, and fail now and then.
func TestEveryDatasetComesToEveryNode(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		names := []string{}
		for i := range 1 + random.IntN(12) {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		all := events(func(d *Dataset) { d.Members = names })
		states, serves := map[string]*dataset.State{}, map[string]bool{}
		for _, name := range names {
			serves[name] = random.IntN(4) > 0
		}
		fetches, rounds := 0, 0
		for whole := 0; whole < len(names); rounds++ {
			if rounds > 400 {
				t.Fatalf("seed %d: after %d rounds %d of %d nodes have the dataset", seed, rounds, whole, len(names))
			}
			var nodes []Node
			for _, name := range names {
				if states[name] == nil || random.IntN(10) == 0 { // silent for now
					continue
				}
				n := Node{Name: name, States: []dataset.State{*states[name]}}
				if serves[name] {
					n.PeerURL = "http://" + name
				}
				nodes = append(nodes, n)
			}
			whole = 0
			for name, told := range Orders(all, nodes) {
				for _, w := range told {
					s := states[name]
					if s == nil {
						states[name] = &dataset.State{UID: "u1"}
						continue
					}
					switch {
					case s.Whole:
						whole++
					case w.Wait:
					case random.IntN(5) == 0:
						s.Failed = true
					default:
						if len(w.Contents) == 0 && serves[name] {
							fetches++
						}
						*s = dataset.State{UID: "u1", Whole: true, Contents: make([]dataset.Content, 2)}
					}
				}
			}
		}
		if fetches > 6 { // silence may let a second node begin
			t.Errorf("seed %d: %d nodes fetched from the sources, though others had the dataset", seed, fetches)
		}
	}
}
