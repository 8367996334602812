package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// openapiFiles holds the Python programs' requirements and settings.
const openapiFiles = "openapi"

// apiClients returns the folder of the programs in openapi/requirements.txt, which "make e2e" installs.
func apiClients(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("NEARMETAL_API_CLIENTS")
	if dir == "" {
		needs.Missing(t, "NEARMETAL_API_CLIENTS names no folder with schemathesis and openapi-python-client (make e2e installs them)")
	}
	return dir
}

// bearer returns the bearer token in a token file's line.
func bearer(line string) string {
	return line[:strings.LastIndex(line, ".")]
}

// tokens makes a token of each role that people have, by role.
func (s *site) tokens() map[api.Role]string {
	s.t.Helper()
	all := map[api.Role]string{}
	for _, role := range []api.Role{api.RoleAdmin, api.RoleMember, api.RoleViewer} {
		made, err := s.api().CreateToken(s.t.Context(), api.TokenRequest{User: "fuzz", Role: role})
		if err != nil {
			s.t.Fatal(err)
		}
		all[role] = bearer(made.Token)
	}
	return all
}

// fuzz runs schemathesis against the site as the bearer of a token.
func (s *site) fuzz(bin, token string, args ...string) {
	s.t.Helper()
	settings, err := filepath.Abs(filepath.Join(openapiFiles, "schemathesis.toml"))
	if err != nil {
		s.t.Fatal(err)
	}
	run := exec.CommandContext(s.t.Context(), filepath.Join(bin, "schemathesis"), append([]string{
		"--config-file", settings, "run", "https://" + s.addr + "/openapi.json", "--checks", "all", "--no-color",
	}, args...)...)
	run.Dir = s.t.TempDir()
	run.Env = append(os.Environ(), "NEARMETAL_BEARER="+token, "NEARMETAL_CA="+filepath.Join(s.dir, "tls", "ca.crt"))
	output, err := run.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "No issues found") {
		s.t.Errorf("schemathesis %s: %v\n%s", strings.Join(args, " "), err, output)
		return
	}
	s.t.Logf("%s", output[max(0, len(output)-600):])
}

func TestTheAPIDoesWhatItsDocumentSaysInEveryRole(t *testing.T) {
	bin := apiClients(t)
	s := startSite(t, 1)
	for role, token := range s.tokens() {
		t.Run(string(role), func(t *testing.T) {
			args := []string{"--phases", "examples,coverage,fuzzing", "--max-examples", "5", "--max-time", "20", "--seed", "1", "--generation-deterministic"}
			if seconds := os.Getenv("NEARMETAL_FUZZ_SECONDS"); seconds != "" {
				args = []string{"--max-time", seconds, "--generation-database", "none"}
			}
			s.as(t).fuzz(bin, token, args...)
		})
	}
}

func TestAClientGeneratedFromTheDocumentCreatesShowsAndDeletesACluster(t *testing.T) {
	bin := apiClients(t)
	s := startSite(t, 1)
	dir := t.TempDir()
	document := filepath.Join(dir, "openapi.json")
	fetch := exec.CommandContext(t.Context(), "curl", "-sf", "--cacert", filepath.Join(s.dir, "tls", "ca.crt"), "-o", document, "https://"+s.addr+"/openapi.json")
	if output, err := fetch.CombinedOutput(); err != nil {
		t.Fatalf("curl: %v\n%s", err, output)
	}
	generate := exec.CommandContext(t.Context(), filepath.Join(bin, "openapi-python-client"), "generate", "--path", document,
		"--output-path", filepath.Join(dir, "generated"), "--meta", "none")
	if output, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("openapi-python-client: %v\n%s", err, output)
	}
	use := exec.CommandContext(t.Context(), filepath.Join(bin, "python"), filepath.Join(openapiFiles, "client.py"),
		dir, "https://"+s.addr, filepath.Join(s.dir, "tls", "ca.crt"), s.tokens()[api.RoleMember])
	output, err := use.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "created, shown and deleted") {
		t.Errorf("the generated client: %v\n%s", err, output)
	}
}
