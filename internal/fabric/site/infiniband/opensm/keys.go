package opensm

import (
	"fmt"
	"os"

	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/keys"
)

// ManagedKeys returns the keys of a fabric that Nearmetal manages, which it makes once. Servers that may lead share the folder, and so the keys.
func ManagedKeys(dir string) (keys.Keys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return keys.Keys{}, fmt.Errorf("the folder of the fabric's files can't be made: %w", err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return keys.Keys{}, err
	}
	defer unlock()
	return keys.Managed(keys.Path(dir))
}
