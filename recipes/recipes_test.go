package recipes_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/recipes"
)

func TestEveryShippedRecipeIsGoodAndBearsItsFilesName(t *testing.T) {
	c := recipes.Catalog{}
	names := c.ShippedNames()
	if strings.Join(names, " ") != "debian-mpi debian-slurm debian-vm inspect rescue" {
		t.Errorf("shipped: %v", names)
	}
	for _, name := range names {
		text, ok := c.Shipped(name)
		if !ok {
			t.Errorf("%s is listed and not there", name)
			continue
		}
		got, digest, err := c.Parse(text)
		if err != nil || got != name || !strings.HasPrefix(digest, "sha256:") {
			t.Errorf("%s is %q, %s, %v", name, got, digest, err)
		}
		r, err := recipe.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, need := range r.Needs() {
			if _, ok := c.Shipped(need); !ok {
				t.Errorf("%s stands on %s, which is not shipped", name, need)
			}
		}
	}
	for _, name := range []string{"", "nothing", "../go", "recipes.go", "debian-mpi.yaml"} {
		if _, ok := c.Shipped(name); ok {
			t.Errorf("%q is shipped", name)
		}
	}
}
