// Command nearmetal-boot is the first process of a machine that boots over the network: it gives the machine its root and stays as its
// init. See package bootagent.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/machine/bootagent"
)

func main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case "modprobe":
		err = bootagent.Modprobe(os.Args[1:])
	case bootagent.ServeRootName:
		err = bootagent.ServeRoot()
	default:
		err = bootagent.Main(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nearmetal-boot:", err)
		os.Exit(1)
	}
}
