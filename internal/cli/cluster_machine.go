package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// machineFields fills in what flags say of virtual machines, and returns the fields that were given.
func (f *createFlags) machineFields(cmd *cobra.Command, in io.Reader, req *api.ClusterRequest) (given []string, err error) {
	for _, size := range []struct {
		flag, value, field string
		to                 *api.Bytes
	}{{"disk", f.disk, "disk", &req.Disk}, {"huge-pages", f.hugePages, "huge_pages", &req.HugePages}} {
		if !cmd.Flags().Changed(size.flag) {
			continue
		}
		if *size.to, err = api.ParseBytes(size.value); err != nil {
			return nil, usage("--%s: %v", size.flag, err)
		}
		given = append(given, size.field)
	}
	if !cmd.Flags().Changed("user-data") {
		return given, nil
	}
	if req.UserData, err = readUserData(f.userData, in); err != nil {
		return nil, usage("--user-data: %v", err)
	}
	return append(given, "user_data"), nil
}

// readUserData reads a file that must not be larger than user data can be.
func readUserData(name string, in io.Reader) (string, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, manifest.MaxUserData+1))
	if err == nil && len(data) > manifest.MaxUserData {
		err = fmt.Errorf("%s is longer than the %d bytes of user data that are possible: let it fetch what is longer", name, manifest.MaxUserData)
	}
	return string(data), err
}
