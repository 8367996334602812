package apiserver_test

import (
	"bytes"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/recipes"
)

// aKey looks like a private key.
var aKey = "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIGHAgEAMBMGByqGSM49AgEGCCqGSM49", 5) + "\n-----END PRIVATE KEY-----\n"

// filesOf is an archive of a member's changed files.
func filesOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	in, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	var out bytes.Buffer
	if _, err := archive.Pack(t.Context(), archive.Source{Dir: in, VolumeBytes: 1 << 20, Scratch: t.TempDir(), Layer: true}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// savingSite is a site of two projects that reads recipes as a server does.
func savingSite(t *testing.T, change func(*apiserver.Config)) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Recipes = recipes.Catalog{}
		if change != nil {
			change(c)
		}
	})
	s.AddNode("n1", 8)
	s.Project("lab", api.Quota{})
	return s
}

// wholeCluster places a cluster of ann's whose members have whole machines, and returns the digest of their image.
func wholeCluster(t *testing.T, s *apiservertest.Site, name string) string {
	t.Helper()
	digest := s.AddImage("debian-mpi", 0, api.StackMetal, api.StackContainer)
	if _, err := s.ClientAs("ann", "default", api.RoleMember).CreateCluster(t.Context(), api.ClusterRequest{Name: name, Environment: "debian-mpi", Size: 2}); err != nil {
		t.Fatal(err)
	}
	_, revision, err := s.Repo.UpdateIntent(t.Context(), name, "", func(in *api.ClusterIntent) error { in.Spec.Groups[0].Stack = api.StackMetal; return nil })
	if err == nil {
		_, err = s.Cache.WaitRevision(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Place(name)
	s.MakeReady(name)
	return digest
}

func sends(data []byte) func(*net.TCPConn) {
	return func(conn *net.TCPConn) { _, _ = conn.Write(data) }
}

func TestFilesOfAMemberBecomeABuildForItsProject(t *testing.T) {
	s := savingSite(t, nil)
	digest := wholeCluster(t, s, "m1")
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	data := filesOf(t, map[string]string{"opt/solver": "x", "home/hpc/key": aKey})
	s.Tunnels.Member = sends(data)
	b, err := ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "solver", KeepKeys: []string{"/home/hpc/key"}})
	if err != nil {
		t.Fatal(err)
	}
	if b.Project != "default" || b.Bases["debian-mpi"] != digest || b.Environment != "solver" || b.By != "ann" || b.Phase != api.BuildPending {
		t.Errorf("the build is %+v", b)
	}
	stored := image.DigestOf(data)
	if !strings.Contains(b.Recipe, string(stored)) || !strings.Contains(b.Recipe, "/home/hpc/key") || !s.Images.Touch(stored) {
		t.Errorf("the recipe is %s; the archive is stored: %v", b.Recipe, s.Images.Touch(stored))
	}
	if opened, want := s.Tunnels.Opened(), s.Cache.View().Cluster("m1").UID()+".m1-0.1 files"; len(opened) != 1 || !strings.HasSuffix(opened[0], want) {
		t.Errorf("opened %q, want the first member's files", opened)
	}
	// Others don't see it, and nobody may change who is not allowed to.
	if _, err := eve.SaveFiles(t.Context(), "default.m1", api.SaveFilesRequest{Environment: "other"}); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("a member of another project saves: %v", err)
	}
	if _, err := vic.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "other"}); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer saves: %v", err)
	}
	if _, err := eve.Build(t.Context(), b.ID); !client.HasCode(err, "build_not_found") {
		t.Errorf("a member of another project sees the build: %v", err)
	}
	if list, err := eve.Builds(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("a member of another project lists %v, %v", list, err)
	}
	if list, err := vic.Builds(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("a viewer of the project lists %v, %v", list, err)
	}
	if _, err := eve.BuildLog(t.Context(), b.ID, 0, 0, false, &bytes.Buffer{}); !client.HasCode(err, "build_not_found") {
		t.Errorf("a member of another project reads the log: %v", err)
	}
}

func TestWhatCantBeSavedLeavesNothing(t *testing.T) {
	s := savingSite(t, func(c *apiserver.Config) {
		c.MaxSavedBytes = 1000
		c.ClusterKeys = func(api.ClusterIntent, api.Assignment) ([][]byte, error) {
			return [][]byte{[]byte("the cluster's own key")}, nil
		}
	})
	wholeCluster(t, s, "m1")
	c := s.Client()
	s.AddImage("mine", 0, api.StackContainer)
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Environment: "debian-mpi"}); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	s.MakeReady("c1")
	good := filesOf(t, map[string]string{"opt/solver": "x"})
	var failed bytes.Buffer
	failed.Write(good[:len(good)/2])
	if err := archive.WriteFailure(&failed, errors.New("opt/big: a file became shorter")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cluster string
		req     api.SaveFilesRequest
		sent    []byte
		code    string
		words   []string
	}{
		"no name":                         {"m1", api.SaveFilesRequest{}, good, "invalid_request", []string{"environment"}},
		"a name that can't be":            {"m1", api.SaveFilesRequest{Environment: "A b"}, good, "invalid_recipe", []string{"A b"}},
		"the name of the nodes' own":      {"m1", api.SaveFilesRequest{Environment: "local"}, good, "environment_exists", nil},
		"a name that is taken":            {"m1", api.SaveFilesRequest{Environment: "mine"}, good, "environment_exists", []string{"nearmetal env delete mine"}},
		"the name of what machines boot":  {"m1", api.SaveFilesRequest{Environment: "inspect"}, good, "environment_exists", []string{"comes with Nearmetal"}},
		"the name of a shipped recipe":    {"m1", api.SaveFilesRequest{Environment: "debian-slurm"}, good, "environment_exists", []string{"comes with Nearmetal"}},
		"a path of a key that can't be":   {"m1", api.SaveFilesRequest{Environment: "e", KeepKeys: []string{"key"}}, good, "invalid_recipe", []string{"keep_keys[0]"}},
		"a member that is not there":      {"m1", api.SaveFilesRequest{Environment: "e", Member: "m1-7"}, good, "member_not_found", []string{"m1-0"}},
		"a cluster of containers":         {"c1", api.SaveFilesRequest{Environment: "e"}, good, "cant_save", []string{`stack "container"`}},
		"a key of the user's":             {"m1", api.SaveFilesRequest{Environment: "e"}, filesOf(t, map[string]string{"home/hpc/key": aKey}), "keys_found", []string{"/home/hpc/key", "--keep-key"}},
		"a key of the cluster":            {"m1", api.SaveFilesRequest{Environment: "e", KeepKeys: []string{"/opt/k"}}, filesOf(t, map[string]string{"opt/k": "it is the cluster's own key"}), "keys_found", []string{"/opt/k", "delete them"}},
		"too much":                        {"m1", api.SaveFilesRequest{Environment: "e"}, filesOf(t, map[string]string{"opt/big": strings.Repeat("b", 1001)}), "cant_save", []string{"too large", "opt/big"}},
		"what is never saved":             {"m1", api.SaveFilesRequest{Environment: "e"}, filesOf(t, map[string]string{"etc/machine-id": "1"}), "cant_save", []string{"never saved"}},
		"a member that ends amid it":      {"m1", api.SaveFilesRequest{Environment: "e"}, good[:len(good)-1030], "cant_save", []string{"did not come whole"}},
		"a member that ends at the end":   {"m1", api.SaveFilesRequest{Environment: "e"}, good[:len(good)-1024], "cant_save", []string{"did not come whole"}},
		"a member that says why it fails": {"m1", api.SaveFilesRequest{Environment: "e"}, failed.Bytes(), "cant_save", []string{"opt/big: a file became shorter"}},
	} {
		s.Tunnels.Member = sends(tc.sent)
		_, err := c.SaveFiles(t.Context(), tc.cluster, tc.req)
		if !client.HasCode(err, tc.code) || slices.ContainsFunc(tc.words, func(words string) bool { return !strings.Contains(err.Error(), words) }) {
			t.Errorf("%s: %v, want %s with %q", name, err, tc.code, tc.words)
		}
		if s.Images.Touch(image.DigestOf(tc.sent)) || len(s.Cache.View().Builds) > 0 {
			t.Errorf("%s: there are %d builds, and the archive is stored: %v", name, len(s.Cache.View().Builds), s.Images.Touch(image.DigestOf(tc.sent)))
		}
	}
	s.Tunnels.SetBroken(errors.New("the node is away"))
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "e"}); !client.HasCode(err, "member_unreachable") {
		t.Errorf("a member that can't be reached: %v", err)
	}
	s.Tunnels.SetBroken(nil)
	s.Tunnels.Member = sends(good)
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "e", Member: "m1-1"}); err != nil {
		t.Errorf("the second member: %v", err)
	}
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "e"}); !client.HasCode(err, "environment_exists") {
		t.Errorf("a name that is being built: %v", err)
	}
	if _, err := c.DeleteCluster(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "f"}); !client.HasCode(err, "wrong_phase") {
		t.Errorf("a cluster that is being deleted: %v", err)
	}
}

func TestOnlyFilesOfReadyMembersAreSaved(t *testing.T) {
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	id := s.Cache.View().Cluster("m1").UID() + ".m1-0.1"
	s.Live.SetMember("n1", id, api.MemberUnhealthy, "its SSH is away")
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"opt/solver": "x"}))
	c := s.Client()
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "e"}); !client.HasCode(err, "cluster_not_ready") || !strings.Contains(err.Error(), "unhealthy") {
		t.Errorf("a member that is not ready: %v", err)
	}
	if _, err := c.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "e", Member: "m1-1"}); err != nil {
		t.Errorf("another member, which is: %v", err)
	}
}

func TestAProjectsEnvironmentIsItsOwn(t *testing.T) {
	s := savingSite(t, nil)
	digest := s.AddImage("debian-mpi", 0, api.StackContainer)
	revision, err := s.Repo.SetEnvironment(t.Context(), api.EnvironmentRecord{Name: "solver", Digest: digest, Project: "default", Recipe: "name: solver"})
	if err == nil {
		_, err = s.Cache.WaitRevision(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	listed := func(c *client.Client) bool {
		list, err := c.Environments(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(list, func(e api.Environment) bool { return e.Name == "solver" })
	}
	if !listed(ann) || !listed(vic) || !listed(s.Client()) || listed(eve) {
		t.Errorf("listed for ann, vic, an administrator and eve: %v %v %v %v", listed(ann), listed(vic), listed(s.Client()), listed(eve))
	}
	if _, err := eve.Environment(t.Context(), "solver"); !client.HasCode(err, "environment_not_found") {
		t.Errorf("another project's shown: %v", err)
	}
	if _, err := eve.CheckEnvironment(t.Context(), "solver", ""); !client.HasCode(err, "environment_not_found") {
		t.Errorf("another project's checked: %v", err)
	}
	if _, err := eve.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Environment: "solver"}); !client.HasCode(err, "unknown_environment") || strings.Contains(err.Error(), `"solver",`) {
		t.Errorf("another project's used: %v", err)
	}
	if _, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Environment: "solver"}); err != nil {
		t.Errorf("one's own used: %v", err)
	}
	if _, err := s.Client().CreateBuild(t.Context(), api.BuildRequest{Recipe: "name: solver\nbase: {debian: bookworm}\n"}); !client.HasCode(err, "invalid_recipe") {
		t.Errorf("a build in its place: %v", err)
	}
	if err := eve.DeleteEnvironment(t.Context(), "solver", false); !client.HasCode(err, "environment_not_found") {
		t.Errorf("another project's deleted: %v", err)
	}
	if err := vic.DeleteEnvironment(t.Context(), "solver", false); !client.HasCode(err, "forbidden") {
		t.Errorf("deleted by a viewer: %v", err)
	}
	if err := ann.DeleteEnvironment(t.Context(), "debian-mpi", false); !client.HasCode(err, "forbidden") {
		t.Errorf("the site's deleted by a member: %v", err)
	}
	if err := ann.DeleteEnvironment(t.Context(), "solver", false); !client.HasCode(err, "environment_in_use") {
		t.Errorf("one in use deleted: %v", err)
	}
	if _, err := ann.DeleteCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
}

// saveFilesOf asks for an environment of the files of a member that has a private key.
func saveFilesOf(t *testing.T, environment string) *http.Response {
	t.Helper()
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"home/hpc/key": aKey}))
	return send(t, s, request{method: "POST", path: "/v1/clusters/m1/save-files", body: `{"environment": "` + environment + `"}`})
}
