/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GS_H
#define GS_H

#include <stddef.h>
#include <stdint.h>

#include "decl.h"

#endif
