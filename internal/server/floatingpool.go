package server

import (
	"fmt"

	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// floatingPool reads --floating-pool. Networks of clusters have the addresses of the network pool.
func floatingPool(texts []string, networks placement.Pool) (floating.Pool, error) {
	p, err := floating.NewPool(texts, networks.Prefix())
	if err != nil {
		return floating.Pool{}, fmt.Errorf("--floating-pool: %w", err)
	}
	return p, nil
}
