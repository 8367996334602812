package contextualization

import (
	"path"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// datasetFiles list the URLs of the datasets that a member reads by URL, one in each line, as programs that read lists of files take them.
func (r *Renderer) datasetFiles(m *api.Assignment) []driver.File {
	var files []driver.File
	for name, urls := range r.cluster.DatasetURLs[m.ID] {
		files = append(files, public(path.Join(api.DatasetURLs, name+".urls"), strings.Join(urls, "\n")+"\n"))
	}
	return files
}
