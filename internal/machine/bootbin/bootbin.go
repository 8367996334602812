// Package bootbin carries the boot agent's binary inside the main binary, for the initrds that builds of environments make.
//
// The binary is built before (make boot), since machines that boot run another program than their servers: small, static, quick to start.
// The package must never build or fetch anything: what is embedded is what machines boot with.
package bootbin

import (
	"embed"
	"errors"
	"io/fs"
)

// Name is the file name of the boot agent's binary.
const Name = "nearmetal-boot"

// ErrMissing: this build embeds no boot agent.
var ErrMissing = errors.New("this build of nearmetal embeds no boot agent; build it with `make build`, which builds the boot agent first")

//go:embed embedded
var embedded embed.FS

// Binary returns the boot agent's binary, or ErrMissing.
func Binary() ([]byte, error) {
	data, err := embedded.ReadFile("embedded/" + Name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrMissing
	}
	return data, err
}
