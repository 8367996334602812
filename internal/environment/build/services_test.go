package build

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestARecipesServiceNeedsItsPrograms(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	programs := programsOf[api.ServiceSlurm]
	for _, p := range programs {
		if err := lacking(root, []api.Service{api.ServiceSlurm}); err == nil || !strings.Contains(err.Error(), "/"+p.path+";") || !strings.Contains(err.Error(), "package "+p.pkg) {
			t.Fatalf("without %s: got %v", p.path, err)
		}
		path := filepath.Join(dir, p.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := lacking(root, []api.Service{api.ServiceSlurm}); err != nil {
		t.Errorf("with all of them: %v", err)
	}
	path := filepath.Join(dir, programs[1].path)
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/alternatives/slurmctld", path)); err != nil {
		t.Fatal(err)
	}
	if err := lacking(root, []api.Service{api.ServiceSlurm}); err != nil {
		t.Errorf("with an alternative: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, programs[0].path), 0o644); err != nil {
		t.Fatal(err)
	}
	if lacking(root, []api.Service{api.ServiceSlurm}) == nil {
		t.Error("a program that can't be executed passes")
	}
}
