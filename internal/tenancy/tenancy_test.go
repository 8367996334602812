package tenancy

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestWhoMayDoWhat(t *testing.T) {
	t.Parallel()
	const yes, no, hidden = "yes", "no", "hidden"
	member := Principal{Role: api.RoleMember, User: "ann", Project: "physics"}
	viewer := Principal{Role: api.RoleViewer, User: "eve", Project: "physics"}
	for _, tt := range []struct {
		name    string
		who     Principal
		project string
		want    [3]string // Read, Run and Change, Administer
	}{
		{"an administrator, anywhere", Principal{Role: api.RoleAdmin}, "physics", [3]string{yes, yes, yes}},
		{"an administrator, the site's", Principal{Role: api.RoleAdmin}, Site, [3]string{yes, yes, yes}},
		{"a member, at home", member, "physics", [3]string{yes, yes, no}},
		{"a member, elsewhere", member, "chemistry", [3]string{hidden, hidden, hidden}},
		{"a member, the default project's", member, api.DefaultProject, [3]string{hidden, hidden, hidden}},
		{"a member, the site's", member, Site, [3]string{yes, no, no}},
		{"a member of no project is one of the default project", Principal{Role: api.RoleMember}, "default", [3]string{yes, yes, no}},
		{"a viewer, at home", viewer, "physics", [3]string{yes, no, no}},
		{"a viewer, elsewhere", viewer, "chemistry", [3]string{hidden, hidden, hidden}},
		{"a viewer, the site's", viewer, Site, [3]string{yes, no, no}},
		{"an agent", Principal{Role: api.RoleAgent}, "physics", [3]string{no, no, no}},
		{"an agent, the site's", Principal{Role: api.RoleAgent}, Site, [3]string{no, no, no}},
		{"an unknown role", Principal{Role: "root"}, "default", [3]string{no, no, no}},
		{"nobody", Principal{}, Site, [3]string{no, no, no}},
	} {
		for verb, i := range map[Verb]int{Read: 0, Run: 1, Change: 1, Administer: 2} {
			got, err := yes, May(tt.who, verb, tt.project)
			var denied *Denied
			switch {
			case errors.As(err, &denied) && denied.Hidden:
				got = hidden
			case err != nil:
				got = no
			}
			if got != tt.want[i] {
				t.Errorf("%s: %s is %q (%v), want %q", tt.name, verb, got, err, tt.want[i])
			}
		}
	}
}

func TestARefusalNamesWhoAskedAndWhatToAskFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		who     Principal
		verb    Verb
		project string
		want    string
	}{
		{
			Principal{Role: api.RoleViewer, User: "eve", Project: "physics"},
			Change, "physics",
			`the token of "eve" is read-only: it has the role viewer in project "physics"; use a token of role member`,
		},
		{
			Principal{Role: api.RoleViewer, User: "eve", Project: "physics"},
			Administer, Site,
			`the token of "eve" is read-only: it has the role viewer in project "physics"; use a token of role admin`,
		},
		{
			Principal{Role: api.RoleMember, TokenID: "0a1b"},
			Administer, "default",
			`the token 0a1b is not allowed to do this: it has the role member in project "default", and this request requires role admin`,
		},
		{
			Principal{Role: api.RoleAgent, Node: "n1"},
			Read, Site,
			`the certificate of node "n1" is for its agent only; ` +
				"use a token for people (DIR/token, or one from: nearmetal token create)",
		},
		{Principal{}, Read, Site, `the token has the unknown role ""; use a token of role member or viewer`},
	} {
		if err := May(tt.who, tt.verb, tt.project); err == nil || err.Error() != tt.want {
			t.Errorf("%+v, %s: got\n%v\nwant\n%s", tt.who, tt.verb, err, tt.want)
		}
	}
}

func TestFullNamesRoundTrip(t *testing.T) {
	t.Parallel()
	label := rapid.StringMatching(`[a-z0-9]([a-z0-9-]{0,5}[a-z0-9])?`)
	rapid.Check(t, func(t *rapid.T) {
		project, name := label.Draw(t, "project"), label.Draw(t, "name")
		full := FullName(project, name)
		if p, n := Split(full); p != project || n != name {
			t.Fatalf("Split(FullName(%q, %q)) = %q, %q", project, name, p, n)
		}
		p := Principal{Role: api.RoleMember, Project: project}
		for _, written := range []string{name, full, project + "." + name} {
			if project == api.DefaultProject || written != name {
				if got, err := Resolve(Principal{Role: api.RoleAdmin}, "", written); err != nil || got != full {
					t.Fatalf("an administrator's %q is %q, %v; want %q", written, got, err, full)
				}
			}
			if got, err := Resolve(p, "", written); err != nil || (got != full && written != full) {
				t.Fatalf("%q of a member of %q is %q, %v; want %q", written, project, got, err, full)
			}
		}
	})
}

func TestNamesAreResolvedInTheAskersProject(t *testing.T) {
	t.Parallel()
	member := Principal{Role: api.RoleMember, Project: "physics"}
	for _, tt := range []struct {
		who           Principal
		project, name string
		want, problem string
	}{
		{Principal{Role: api.RoleAdmin}, "", "sim", "sim", ""},
		{Principal{Role: api.RoleAdmin}, "physics", "sim", "physics.sim", ""},
		{Principal{Role: api.RoleAdmin}, "physics", "physics.sim", "physics.sim", ""},
		{Principal{Role: api.RoleAdmin}, "physics", "chemistry.sim", "", "omit the project"},
		{Principal{Role: api.RoleAdmin}, "", "default.sim", "sim", ""},
		{member, "", "sim", "physics.sim", ""},
		{member, "default", "sim", "sim", ""}, // which May then hides
		{member, "", "chemistry.sim", "chemistry.sim", ""},
		{member, "", "a.b.c", "", "write NAME, or PROJECT.NAME"},
		{member, "", ".sim", "", "write NAME, or PROJECT.NAME"},
		{member, "", "sim.", "", "write NAME, or PROJECT.NAME"},
	} {
		got, err := Resolve(tt.who, tt.project, tt.name)
		if got != tt.want || (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%q in %q by one of %q: %q, %v; want %q, %q", tt.name, tt.project, tt.who.Project, got, err, tt.want, tt.problem)
		}
	}
}

// site is a state with its cache, and the token files of a server.
type site struct {
	*testing.T
	repo   *state.Repo
	cache  *state.Cache
	leader *state.Leader
	trust  *trust.Authority
	dir    string
}

func newSite(t *testing.T) *site {
	s := &site{T: t, repo: state.New(memory.New())}
	var err error
	if s.cache, err = s.repo.OpenCache(t.Context()); err != nil {
		t.Fatal(err)
	}
	won, err := s.repo.Store().Campaign(context.WithoutCancel(t.Context()), "server-1")
	if err != nil {
		t.Fatal(err)
	}
	s.leader = s.repo.AsLeader(won)
	s.dir = t.TempDir()
	if s.trust, err = trust.Open(s.dir); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) reach(revision int64, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	if _, err := s.cache.WaitRevision(s.Context(), revision); err != nil {
		s.Fatal(err)
	}
}

func TestAStoredTokenIsKnownUntilItIsRevokedOrEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	clock := now
	tokens := NewTokens(s.trust.Tokens, s.cache, func() time.Time { return clock })
	s.reach(s.repo.CreateProject(t.Context(), api.Project{Name: "physics", Shares: 1}))
	ends := now.Add(time.Hour)
	store := func(user string, ends *time.Time) trust.Token {
		token := trust.NewToken(s.trust.Pin())
		s.reach(s.repo.CreateToken(t.Context(), api.TokenInfo{
			ID: token.ID(), SHA256: token.SHA256(), User: user, Project: "physics", Role: api.RoleMember, ExpiresAt: ends,
		}))
		return token
	}
	ann, eve := store("ann", nil), store("eve", &ends)
	check := func(when string, token trust.Token, want bool) {
		t.Helper()
		if _, ok := tokens.Verify(token.Bearer()); ok != want {
			t.Errorf("%s: known is %v, want %v", when, ok, want)
		}
	}
	got, _ := tokens.Verify(ann.Bearer())
	if want := (Principal{Role: api.RoleMember, User: "ann", Project: "physics", TokenID: ann.ID()}); !got.Equal(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	check("before its end", eve, true)
	clock = ends
	check("at its end", eve, false)
	check("one that never ends", ann, true)
	check("one nobody stored", trust.NewToken(s.trust.Pin()), false)
	s.reach(s.repo.DeleteToken(t.Context(), "", ann.ID()))
	check("revoked", ann, false)

	// The ID of a stored token with another secret.
	bob := store("bob", nil)
	forged := trust.NewToken(s.trust.Pin())
	s.reach(s.repo.DeleteToken(t.Context(), "physics", bob.ID()))
	s.reach(s.repo.CreateToken(t.Context(), api.TokenInfo{ID: bob.ID(), SHA256: forged.SHA256(), Project: "physics", Role: api.RoleAdmin}))
	check("another secret", bob, false)
	s.reach(s.repo.DeleteToken(t.Context(), "", bob.ID()))
	s.reach(s.repo.CreateToken(t.Context(), api.TokenInfo{ID: bob.ID(), Project: "physics", Role: api.RoleAdmin}))
	check("no hash stored", bob, false)

	file, err := trust.ReadToken(filepath.Join(s.dir, "token"))
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := tokens.Verify(file.Bearer()); !ok || p.Role != api.RoleAdmin {
		t.Errorf("the token file: %+v, %v; want an administrator", p, ok)
	}
	if _, ok := tokens.Verify("nonsense"); ok {
		t.Error("nonsense is a token")
	}
}

func TestUsedIsWhatPlacedClustersHoldOrAreToHold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.reach(s.repo.CreateProject(t.Context(), api.Project{Name: "physics", Shares: 1}))
	spec := api.ClusterSpec{Groups: []api.Group{{Name: "g", Size: 3, Spares: 1, Shape: api.Shape{Cores: 2, Memory: 1 << 30}, Devices: []api.DeviceRequest{{Class: "gpu", Way: "whole", Count: 1}}}}}
	s.reach(s.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1", Capacity: api.NodeCapacity{Devices: []api.Device{{
		ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 7}, Ways: map[string]api.DeviceWay{"whole": {Takes: map[string]int64{"slices": 7}}},
	}}}}))
	phase := api.ClusterDegraded
	place := func(name, project string, placed bool, held int) {
		s.reach(s.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: name, UID: "u" + name, Project: project, Spec: spec}))
		if !placed {
			return
		}
		batch := decision.Batch{}
		for range held {
			batch.Assignments = append(batch.Assignments, api.Assignment{
				Slots: []int{1, 2}, Memory: []api.MemoryClaim{{Bytes: 1 << 30}}, Devices: []api.DeviceClaim{{Class: "gpu", Takes: map[string]int64{"slices": 1}}},
			})
		}
		releasing := decision.Batch{Assignments: []api.Assignment{{ID: "old" + name, Slots: []int{3}}}, Releasing: true, ReleasedAt: &now}
		s.reach(s.leader.Commit(t.Context(), s.cache.Cluster(name), state.Write{
			Record: api.ClusterRecord{Name: name, UID: "u" + name, PlacedAt: &now, Phase: phase},
			Add:    []state.Batch{batch, releasing},
		}))
	}
	place("a", "", true, 4)
	place("waits", "", false, 0)
	place("shrinks", "physics", true, 6)
	place("lost", "physics", true, 0)
	place("goes", "physics", true, 1)
	_, rev, err := s.repo.RequestDelete(t.Context(), "goes", now)
	s.reach(rev, err)
	phase = api.ClusterDeleting
	place("expired", "", true, 1)
	amounts := func(v resource.Vector, slices int64) resource.Amounts {
		return resource.Amounts{Vector: v, Devices: resource.Devices{"gpu/slices": slices}}
	}
	// Of the clusters that stay, three members ask for a GPU each, and spares for none.
	want := map[string]resource.Amounts{
		"default": amounts(resource.Vector{resource.Clusters: 2, resource.Members: 5, resource.Cores: 10, resource.Memory: 5 << 30}, 21+1),
		"physics": amounts(resource.Vector{resource.Clusters: 3, resource.Members: 6 + 4 + 1, resource.Cores: 12 + 8 + 2, resource.Memory: 11 << 30}, 21+21+1),
	}
	if diff := cmp.Diff(want, Used(s.cache.View())); diff != "" {
		t.Errorf("used, -want +got:\n%s", diff)
	}
	want["default"] = amounts(want["default"].Vector, 4+1)
	want["physics"] = amounts(resource.Vector{resource.Clusters: 2, resource.Members: 7, resource.Cores: 14, resource.Memory: 7 << 30}, 7)
	if diff := cmp.Diff(want, Held(s.cache.View())); diff != "" {
		t.Errorf("held, -want +got:\n%s", diff)
	}
}

func TestAQuotaIsKeptAndSaysWhatBinds(t *testing.T) {
	t.Parallel()
	slices := func(n int64) api.Quota { return api.Quota{Devices: map[string]int64{"gpu/slices": n}} }
	full := api.Quota{Cores: 8, Memory: 8 << 30, Members: 4, Clusters: 2}
	for _, tt := range []struct {
		name             string
		quota, used, add api.Quota
		what             string
		never            bool
		says             string
	}{
		{"no quota", api.Quota{}, full, full, "", false, ""},
		{"just fits", full, api.Quota{Cores: 6, Members: 3, Clusters: 1}, api.Quota{Cores: 2, Members: 1, Clusters: 1, Memory: 8 << 30}, "", false, ""},
		{"cores", full, api.Quota{Cores: 6}, api.Quota{Cores: 3}, "cores", false, "it needs 3 cores, but the project uses 6 of its quota of 8"},
		{"memory", full, api.Quota{Memory: 1 << 30}, api.Quota{Memory: 8 << 30}, "memory", false, "uses 1GiB of its quota of 8GiB"},
		{"members", full, api.Quota{Members: 4}, api.Quota{Members: 1}, "members", false, "uses 4 of its quota of 4"},
		{"devices", slices(14), slices(8), slices(7), "gpu/slices", false, "it needs 7 gpu/slices, but the project uses 8 of its quota of 14"},
		{"more devices than all", slices(6), api.Quota{}, slices(7), "gpu/slices", true, "it needs 7 gpu/slices, but the project's quota is 6"},
		{"clusters", full, api.Quota{Clusters: 2}, api.Quota{Clusters: 1}, "clusters", false, "delete something"},
		{"more than all", full, api.Quota{}, api.Quota{Cores: 9}, "cores", true, "it needs 9 cores, but the project's quota is 8; request less"},
		{"over already, and asks for none of it", full, api.Quota{Cores: 10}, api.Quota{Members: 1}, "", false, ""},
	} {
		err := CheckQuota(tt.quota, resource.OfQuota(tt.used), resource.OfQuota(tt.add))
		var exceeded *QuotaExceeded
		switch {
		case tt.what == "":
			if err != nil {
				t.Errorf("%s: %v, want no error", tt.name, err)
			}
		case !errors.As(err, &exceeded) || exceeded.What.String() != tt.what || exceeded.Never != tt.never || !strings.Contains(err.Error(), tt.says):
			t.Errorf("%s: %v (%+v), want %q, never %v, with %q", tt.name, err, exceeded, tt.what, tt.never, tt.says)
		}
	}
}
