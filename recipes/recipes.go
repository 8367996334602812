// Package recipes holds the recipes that come with the product, as the files beside this one, and the way others read recipes.
//
// It must never decide which of them is used. Start with Catalog.
package recipes

import (
	"embed"
	"path"
	"strings"

	"github.com/nearmetal/nearmetal/internal/environment/recipe"
)

//go:embed *.yaml
var files embed.FS

// Catalog reads recipes, and has those that are shipped.
type Catalog struct{}

// Parse reads a recipe and returns its environment's name and the digest of its normal form; the error is a *manifest.Invalid.
func (Catalog) Parse(text []byte) (name, digest string, err error) {
	r, err := recipe.Parse(text)
	if err != nil {
		return "", "", err
	}
	return r.Name, r.Digest(), nil
}

// Shipped returns the text of a shipped recipe.
func (Catalog) Shipped(name string) ([]byte, bool) {
	if strings.ContainsAny(name, "/.") {
		return nil, false
	}
	text, err := files.ReadFile(name + ".yaml")
	return text, err == nil
}

// ShippedNames are the names of the shipped recipes, sorted.
func (Catalog) ShippedNames() []string {
	entries, err := files.ReadDir(".") // sorted by name
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), path.Ext(e.Name())))
	}
	return names
}
