/* SPDX-License-Identifier: Apache-2.0
 *
 * The registry of back ends: a list built by constructors, read by name.
 */
#include "backend.h"

#include <string.h>

static struct gs_exporter *exporters;
static struct gs_importer *importers;

void gs_register_exporter(struct gs_exporter *exporter)
{
	exporter->next = exporters;
	exporters = exporter;
}

void gs_register_importer(struct gs_importer *importer)
{
	importer->next = importers;
	importers = importer;
}

const struct gs_exporter *gs_find_exporter(const char *name)
{
	const struct gs_exporter *e = exporters;

	while (e && strcmp(e->name, name))
		e = e->next;
	return e;
}

const struct gs_importer *gs_find_importer(const char *name)
{
	const struct gs_importer *i = importers;

	while (i && strcmp(i->name, name))
		i = i->next;
	return i;
}

int gs_has_backend(int kind, const char *name)
{
	return kind ? gs_find_importer(name) != NULL
		    : gs_find_exporter(name) != NULL;
}
